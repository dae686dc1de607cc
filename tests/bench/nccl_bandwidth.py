"""Ceilings of the links between the GPUs of one host: collectives and send/receive through NCCL. Run with torchrun."""
import torch, os, torch.distributed as dist
r=int(os.environ['LOCAL_RANK']); torch.cuda.set_device(r); dist.init_process_group('nccl', device_id=torch.device('cuda',r)); W=dist.get_world_size()
def t(f,n=20,w=5):
    for _ in range(w): f()
    torch.cuda.synchronize(); dist.barrier()
    s=torch.cuda.Event(enable_timing=True); e=torch.cuda.Event(enable_timing=True); s.record()
    for _ in range(n): f()
    e.record(); torch.cuda.synchronize(); return s.elapsed_time(e)/n/1e3
for mb in (1,16,64,256,1024):
    n=mb*2**20//2
    x=torch.zeros(n,device='cuda',dtype=torch.bfloat16); o=torch.empty(n//W,device='cuda',dtype=torch.bfloat16)
    ar=t(lambda: dist.all_reduce(x)); rs=t(lambda: dist.reduce_scatter_tensor(o,x)); ag=t(lambda: dist.all_gather_into_tensor(x,o))
    def p2p():
        if r==0: dist.send(x,1)
        elif r==1: dist.recv(x,0)
    pp=t(p2p)
    if r==0: print(f'{mb} MiB allreduce {ar*1e3:.3f} ms busbw {2*(W-1)/W*mb*2**20/ar/1e9:.0f} GB/s; rs busbw {(W-1)/W*mb*2**20/rs/1e9:.0f}; ag busbw {(W-1)/W*mb*2**20/ag/1e9:.0f}; p2p {mb*2**20/pp/1e9:.0f} GB/s', flush=True)
dist.destroy_process_group()

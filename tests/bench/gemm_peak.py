"""Ceilings of one GPU: matrix products, attention, copies. Prints the median of 20 runs each."""
import torch, time
import torch.nn.functional as F
torch.manual_seed(0)
def t(f,n=20,w=5):
    for _ in range(w): f()
    torch.cuda.synchronize()
    a=[torch.cuda.Event(enable_timing=True) for _ in range(n+1)]
    a[0].record()
    for i in range(n): f(); a[i+1].record()
    torch.cuda.synchronize()
    xs=sorted(a[i].elapsed_time(a[i+1]) for i in range(n))
    return xs[len(xs)//2]/1e3
print('--gemm bf16')
for m,n,k in [(8192,8192,8192),(16384,2048*3,2048),(16384,8192,2048),(16384,2048,8192),(8192,5120*3,5120),(8192,20480,5120),(8192,5120,20480),(8192,12288,4096),(8192,16384,4096),(8192,4096,16384),(16384,50304,2048)]:
    a=torch.randn(m,k,device='cuda',dtype=torch.bfloat16); b=torch.randn(n,k,device='cuda',dtype=torch.bfloat16)
    s=t(lambda: a@b.t()); print(f'{m}x{n}x{k} fwd {2*m*n*k/s/1e12:.0f} TF/s', end=' ')
    d=torch.randn(m,n,device='cuda',dtype=torch.bfloat16)
    s=t(lambda: d@b); print(f'dgrad {2*m*n*k/s/1e12:.0f}', end=' ')
    s=t(lambda: d.t()@a); print(f'wgrad {2*m*n*k/s/1e12:.0f}')
    del a,b,d
print('--sdpa causal bf16')
from torch.nn.attention import sdpa_kernel, SDPBackend
for B,H,S,D in [(8,16,2048,128),(8,32,2048,64),(4,40,2048,128),(4,32,4096,128)]:
    q,k,v=[torch.randn(B,H,S,D,device='cuda',dtype=torch.bfloat16,requires_grad=True) for _ in range(3)]
    g=torch.randn(B,H,S,D,device='cuda',dtype=torch.bfloat16)
    for be in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            with sdpa_kernel(be):
                f=t(lambda: F.scaled_dot_product_attention(q,k,v,is_causal=True))
                o=F.scaled_dot_product_attention(q,k,v,is_causal=True)
                b=t(lambda: torch.autograd.grad(o,(q,k,v),g,retain_graph=True))
            fl=2*2*B*H*S*S*D/2
            print(B,H,S,D,be.name,f'fwd {fl/f/1e12:.0f} TF/s bwd {2.5*fl/b/1e12:.0f} TF/s')
        except Exception as e: print(B,H,S,D,be.name,'ERR',str(e)[:100])
print('--copy')
x=torch.empty(2**31,device='cuda',dtype=torch.uint8); y=torch.empty_like(x)
s=t(lambda: y.copy_(x)); print(f'd2d {2*2**31/s/1e12:.2f} TB/s')
h=torch.empty(2**30,dtype=torch.uint8,pin_memory=True); d=torch.empty(2**30,device='cuda',dtype=torch.uint8)
s=t(lambda: d.copy_(h,non_blocking=True)); print(f'h2d pinned {2**30/s/1e9:.1f} GB/s')
s=t(lambda: h.copy_(d,non_blocking=True)); print(f'd2h pinned {2**30/s/1e9:.1f} GB/s')
hp=torch.empty(2**28,dtype=torch.uint8)
t0=time.time(); d[:2**28].copy_(hp); torch.cuda.synchronize(); t0=time.time(); d[:2**28].copy_(hp); torch.cuda.synchronize(); print(f'h2d pageable {2**28/(time.time()-t0)/1e9:.1f} GB/s')
a=torch.rand(2**28); b=torch.empty_like(a)
for n in (1,4,8,16,32):
    torch.set_num_threads(n); b.copy_(a); t0=time.time(); [b.copy_(a) for _ in range(5)]; print(f'host copy {n} threads {5*2*4*2**28/(time.time()-t0)/1e9:.1f} GB/s')

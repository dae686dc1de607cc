// One step, lane by lane. data: {step_seconds, kinds: [{name, color}], names: [text], rows: [{label, note, lanes: [{name,
// spans: [start ns, length ns, kind, name, micro-batch, ...]}]}]}. Timelines with one `view` zoom together.
const kSpan = 5;
class Timeline {
  constructor(host, data, view) {
    Object.assign(this, {host, data, view});
    for (const row of data.rows) row.lanes ??= data.rows[row.like].lanes;
    this.canvas = host.querySelector('canvas');
    this.canvas.tabIndex = 0;
    let most = 0;
    for (const row of data.rows) for (const lane of row.lanes)
      for (let i = 4; i < lane.spans.length; i += kSpan) most = Math.max(most, lane.spans[i]);
    this.widest = '8'.repeat(String(most).length);  // all numbers are drawn, or none
    this.lanes = this.place();
    view.members.push(this);
    view.end = Math.max(view.end, view.full = Math.max(view.full, data.step_seconds * 1e9));
    this.listen();
    redraws.push(() => this.draw());
  }
  // Vertical places of lanes; of the compute lane also its passes: neighbours of one kind and micro-batch.
  place() {
    const lanes = [];
    let y = 26;
    this.labels = [];
    for (const row of this.data.rows) {
      const top = y;
      for (const lane of row.lanes) {
        const height = lane.name === 'compute' ? 22 : 11;
        const [spans, waits] = this.split(lane.spans);
        lanes.push({row, name: lane.name, spans, waits, passes: this.passesOf(spans), y, height});
        y += height + 2;
      }
      this.labels.push({row, top, bottom: y});
      y += 9;
    }
    this.height = y + 20;
    return lanes;
  }
  split(all) {
    const spans = [], waits = [];
    for (let i = 0; i < all.length; i += kSpan) {
      (this.data.kinds[all[i + 2]].waits ? waits : spans).push(all[i], all[i + 1], all[i + 2], all[i + 3], all[i + 4]);
    }
    return [spans, waits];
  }
  passesOf(s) {
    const passes = [];
    for (let i = 0; i < s.length; i += kSpan) {
      const n = passes.length - kSpan;
      const joins = n >= 0 && passes[n + 2] === s[i + 2] && passes[n + 4] === s[i + 4] &&
        s[i] - passes[n] - passes[n + 1] <= 0.02 * passes[n + 1] + 1;
      if (joins) { passes[n + 1] = s[i] + s[i + 1] - passes[n]; passes[n + 3] = -1; }
      else passes.push(s[i], s[i + 1], s[i + 2], s[i + 3], s[i + 4]);
    }
    return passes;
  }
  get left() { return 128; }
  get width() { return this.canvas.clientWidth - this.left - 12; }
  x(t) { return this.left + (t - this.view.begin) / (this.view.end - this.view.begin) * this.width; }
  time(x) { return this.view.begin + (x - this.left) / this.width * (this.view.end - this.view.begin); }
  draw() {
    const ratio = devicePixelRatio || 1, c = this.canvas, g = c.getContext('2d');
    c.style.height = this.height + 'px';
    c.width = Math.round(c.clientWidth * ratio);
    c.height = Math.round(this.height * ratio);
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, c.clientWidth, this.height);
    this.font = getComputedStyle(document.body).fontFamily;
    this.drawAxis(g);
    this.drawLabels(g);
    g.save();
    g.beginPath();
    g.rect(this.left, 0, this.width, this.height);
    g.clip();
    for (const lane of this.lanes) this.drawLane(g, lane);
    g.restore();
  }
  drawAxis(g) {
    const {begin, end} = this.view, step = tickStep(end - begin, Math.max(2, this.width / 110));
    g.font = '11.5px ' + this.font;
    g.textBaseline = 'middle';
    g.textAlign = 'center';
    for (let t = Math.ceil(begin / step) * step; t <= end; t += step) {
      const x = this.x(t), label = timeLabel(t / 1e9, step / 1e9, end / 1e9);
      g.fillStyle = css('--line');
      g.fillRect(Math.round(x), 20, 1, this.height - 40);
      g.fillStyle = css('--soft');
      const half = g.measureText(label).width / 2;
      if (x - half < this.left - 8 || x + half > this.left + this.width + 12) continue;
      g.fillText(label, x, 10);
      g.fillText(label, x, this.height - 9);
    }
  }
  drawLabels(g) {
    g.textAlign = 'left';
    for (const {row, top} of this.labels) {
      g.font = '600 12.5px ' + this.font;
      g.fillStyle = css('--ink');
      g.fillText(row.label, 2, top + 11);
    }
    g.font = '10px ' + this.font;
    g.fillStyle = css('--soft');
    g.textAlign = 'right';
    for (const lane of this.lanes) g.fillText(lane.name, this.left - 6, lane.y + lane.height / 2 + 0.5);
  }
  drawLane(g, lane) {
    g.fillStyle = css('--faint');
    g.fillRect(this.left, lane.y, this.width, lane.height);
    const pixel = (this.view.end - this.view.begin) / this.width;
    // Single instructions where these are wide enough to see, else passes.
    const s = lane.spans, count = s.length / kSpan;
    const mean = count ? (s[s.length - kSpan] + s[s.length - kSpan + 1] - s[0]) / count : 0;
    lane.shown = mean / pixel > 7 ? lane.spans : lane.passes;
    this.each(lane.shown, (i, x0, x1) => this.drawSpan(g, lane, lane.shown, i, x0, x1));
    g.globalAlpha = 0.6;
    this.each(lane.waits, (i, x0, x1) => {
      g.fillStyle = this.data.kinds[lane.waits[i + 2]].color;
      g.fillRect(x0, lane.y + lane.height - 4, Math.max(x1 - x0, 0.7), 4);
    });
    g.globalAlpha = 1;
  }
  // Those in view, but for what lies under another in the same pixel.
  each(spans, draw) {
    let drawn = -1;
    for (let i = this.first(spans, this.view.begin); i < spans.length && spans[i] < this.view.end; i += kSpan) {
      const x0 = Math.max(this.x(spans[i]), this.left - 2), x1 = this.x(spans[i] + spans[i + 1]);
      if (x1 <= drawn + 0.25) continue;
      drawn = x1;
      draw(i, x0, Math.min(x1, this.left + this.width + 2));
    }
  }
  drawSpan(g, lane, spans, i, x0, x1) {
    const kind = this.data.kinds[spans[i + 2]], width = Math.max(x1 - x0, 0.7), gap = width > 3 ? 1 : 0;
    g.globalAlpha = spans[i + 4] % 2 === 1 ? 0.8 : 1;
    g.fillStyle = kind.color;
    g.fillRect(x0, lane.y, width - gap, lane.height);
    g.globalAlpha = 1;
    if (lane.height < 16 || width < 9) return;
    const micro = spans[i + 4] >= 0 ? String(spans[i + 4]) : '';
    g.fillStyle = dark(kind.color) ? '#fff' : '#111';
    g.textAlign = 'center';
    g.font = '11px ' + this.font;
    const full = spans === lane.spans && spans[i + 3] >= 0 ? this.data.names[spans[i + 3]] : kind.name + (micro ? ' ' + micro : '');
    let text = [full, kind.name].find(t => t && g.measureText(t).width < width - 6);
    if (!text && micro && g.measureText(this.widest).width < width - 3) text = micro;
    if (text) g.fillText(text, (x0 + x1) / 2, lane.y + lane.height / 2 + 0.5);
  }
  // The last span that begins at or before t, or the first of all.
  first(spans, t) {
    let low = 0, high = spans.length / kSpan;
    while (low < high) {
      const middle = low + high >> 1;
      if (spans[middle * kSpan] <= t) low = middle + 1; else high = middle;
    }
    return Math.max(0, low - 1) * kSpan;
  }
  tipAt(x, y) {
    const lane = this.lanes.find(l => y >= l.y && y < l.y + l.height);
    if (!lane || x < this.left || !lane.shown) return '';
    const t = this.time(x), span = this.hit(lane.shown, t), wait = this.hit(lane.waits, t), where = `${lane.row.label}, lane ${lane.name}`;
    if (span < 0 && wait < 0) return `${where}: idle`;
    const text = (s, i) => (s[i + 3] >= 0 ? this.data.names[s[i + 3]] : this.data.kinds[s[i + 2]].name) +
      `\n${seconds(s[i + 1] / 1e9)}, from ${seconds(s[i] / 1e9)}` + (s[i + 4] >= 0 ? `\nmicro-batch ${s[i + 4]}` : '');
    return [span < 0 ? '' : text(lane.shown, span), wait < 0 ? '' : text(lane.waits, wait),
      where + (lane.row.note ? ` (${lane.row.note})` : '')].filter(Boolean).join('\n');
  }
  hit(spans, t) {  // within two pixels; -1: none
    const near = 2 * (this.view.end - this.view.begin) / this.width;
    let i = this.first(spans, t);
    if (i + kSpan < spans.length && t > spans[i] + spans[i + 1] && spans[i + kSpan] - t < near) i += kSpan;
    return i >= spans.length || t < spans[i] - near || t > spans[i] + spans[i + 1] + near ? -1 : i;
  }
  listen() {
    const c = this.canvas, view = this.view;
    let from = null;
    c.addEventListener('mousedown', e => { from = {x: e.offsetX, begin: view.begin, end: view.end}; });
    addEventListener('mouseup', () => { from = null; });
    c.addEventListener('mousemove', e => {
      if (from) {
        const shift = (from.x - e.offsetX) / this.width * (from.end - from.begin);
        view.show(from.begin + shift, from.end + shift);
      }
      showTip(e, from ? '' : this.tipAt(e.offsetX, e.offsetY));
    });
    c.addEventListener('mouseleave', e => showTip(e, ''));
    c.addEventListener('dblclick', e => view.zoom(1 / 3, this.time(e.offsetX)));
    c.addEventListener('wheel', e => {
      if (!e.ctrlKey && !e.metaKey) return;  // a plain wheel scrolls the page
      e.preventDefault();
      view.zoom(1.0015 ** e.deltaY, this.time(e.offsetX));
    }, {passive: false});
    c.addEventListener('keydown', e => {
      const width = view.end - view.begin;
      const act = {'+': () => view.zoom(0.6), '=': () => view.zoom(0.6), '-': () => view.zoom(1 / 0.6), '0': () => view.fit(),
        ArrowLeft: () => view.show(view.begin - width / 6, view.end - width / 6),
        ArrowRight: () => view.show(view.begin + width / 6, view.end + width / 6)}[e.key];
      if (act) { e.preventDefault(); act(); }
    });
    for (const button of this.host.querySelectorAll('button')) {
      button.onclick = {in: () => view.zoom(0.5), out: () => view.zoom(2), fit: () => view.fit()}[button.dataset.act];
    }
  }
}
const makeView = () => ({
  begin: 0, end: 1, full: 1, members: [],
  show(begin, end) {
    const width = Math.min(Math.max(end - begin, 500), this.full);
    this.begin = Math.max(0, Math.min(begin, this.full - width));
    this.end = this.begin + width;
    this.members.forEach(m => m.draw());
  },
  zoom(factor, at = (this.begin + this.end) / 2) { this.show(at - (at - this.begin) * factor, at + (this.end - at) * factor); },
  fit() { this.show(0, this.full); },
});
const views = new Map();
for (const host of document.querySelectorAll('[data-timeline]')) {
  const name = host.dataset.view;
  if (!views.has(name)) views.set(name, makeView());
  new Timeline(host, dataOf(host.dataset.timeline), views.get(name));
}
for (const view of views.values()) view.fit();

// Bytes by class over time, stacked. data: {step_seconds, limit, classes: [{name, color}], rows: [{label, seconds: [], bytes:
// [[a class], ...]}]}; each point holds until the next.
const svgElement = (name, attributes, parent) => {
  const element = document.createElementNS(document.querySelector('svg').namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent?.append(element);
  return element;
};
const drawAreas = (host, data, row) => {
  const svg = host.querySelector('svg'), width = Math.max(480, svg.clientWidth || 900), height = 300;
  const left = 76, right = 14, top = 14, bottom = 30;
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const {seconds: at, bytes: stacks} = data.rows[row], totals = stacks.map(s => s.reduce((a, b) => a + b, 0));
  const most = totals.reduce((a, b) => Math.max(a, b), 1);
  const ceiling = data.limit && data.limit < 1.6 * most ? Math.max(most, data.limit) * 1.04 : most * 1.08;
  const x = t => left + t / data.step_seconds * (width - left - right), y = b => height - bottom - b / ceiling * (height - top - bottom);
  let unit = 1;
  while (ceiling / unit >= 1024 && unit < 2 ** 40) unit *= 1024;
  const step = tickStep(ceiling / unit, 5) * unit;
  for (let b = 0; b <= ceiling; b += step) {
    svgElement('line', {x1: left, x2: width - right, y1: y(b), y2: y(b), class: 'grid'}, svg);
    const decimals = step / unit < 1 ? 1 : 0, names = {1: 'B', 1024: 'KiB', [2 ** 20]: 'MiB', [2 ** 30]: 'GiB', [2 ** 40]: 'TiB'};
    svgElement('text', {x: left - 8, y: y(b) + 4, 'text-anchor': 'end'}, svg).textContent = (b / unit).toFixed(decimals) + ' ' + names[unit];
  }
  const timeStep = tickStep(data.step_seconds, Math.max(2, (width - left) / 120));
  for (let t = 0; t <= data.step_seconds * 1.0001; t += timeStep) {
    const anchor = x(t) > width - 30 ? 'end' : 'middle';
    svgElement('text', {x: x(t), y: height - 10, 'text-anchor': anchor}, svg).textContent = timeLabel(t, timeStep, data.step_seconds);
  }
  const below = stacks.map(() => 0);
  data.classes.forEach((kind, k) => {
    if (stacks.every(s => s[k] === 0)) return;
    let upper = '', lower = '';
    stacks.forEach((s, i) => {
      const x0 = x(at[i]).toFixed(1), x1 = x(i + 1 < at.length ? at[i + 1] : data.step_seconds).toFixed(1);
      const base = y(below[i]).toFixed(1), roof = y(below[i] += s[k]).toFixed(1);
      upper += `L${x0} ${roof}L${x1} ${roof}`;
      lower = `L${x1} ${base}L${x0} ${base}` + lower;
    });
    svgElement('path', {d: 'M' + upper.slice(1) + lower + 'Z', fill: kind.color}, svg);
  });
  if (data.limit && data.limit <= ceiling) {
    svgElement('line', {x1: left, x2: width - right, y1: y(data.limit), y2: y(data.limit), class: 'limit'}, svg);
    svgElement('text', {x: width - right - 4, y: y(data.limit) - 5, 'text-anchor': 'end', class: 'limit-text'}, svg).textContent =
      'a device has ' + bytes(data.limit);
  }
  svg.onmousemove = e => {
    const box = svg.getBoundingClientRect(), t = ((e.clientX - box.left) / box.width * width - left) / (width - left - right) * data.step_seconds;
    if (t < 0 || t > data.step_seconds) return showTip(e, '');
    let i = at.findIndex(s => s > t);
    i = i < 0 ? at.length - 1 : Math.max(0, i - 1);
    const parts = data.classes.map((c, k) => [stacks[i][k], c.name]).filter(p => p[0] > 0).reverse();
    showTip(e, `${bytes(totals[i])} at ${seconds(t)}\n` + parts.map(p => `${p[1]} ${bytes(p[0])}`).join('\n'));
  };
  svg.onmouseleave = e => showTip(e, '');
};
for (const host of document.querySelectorAll('[data-areas]')) {
  const data = dataOf(host.dataset.areas), select = host.querySelector('select');
  const draw = () => drawAreas(host, data, select ? select.selectedIndex : 0);
  if (select) select.onchange = draw;
  redraws.push(draw);
  draw();
}

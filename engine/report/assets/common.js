'use strict';
// Data of the page: one JSON text a <script type="application/json">.
const dataOf = id => JSON.parse(document.getElementById(id).textContent);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const seconds = s => {
  const a = Math.abs(s);
  if (a === 0) return '0 s';
  const [value, unit] = a >= 1 ? [s, 's'] : a >= 1e-3 ? [s * 1e3, 'ms'] : [s * 1e6, 'µs'];
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2) + ' ' + unit;
};
const bytes = b => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; Math.abs(b) >= 1024 && i < 4; ++i) b /= 1024;
  return (i ? b.toFixed(2) : b) + ' ' + units[i];
};
const dark = color => {  // does light text stand on it?
  const n = parseInt(color.slice(1), 16);
  return 0.299 * (n >> 16) + 0.587 * (n >> 8 & 255) + 0.114 * (n & 255) < 140;
};
// Round steps of an axis: about `count` ticks over `span`.
const tickStep = (span, count) => {
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find(f => f * power >= rough);
};
// Of a tick of an axis that ends at `end`; all in seconds.
const timeLabel = (t, step, end) => {
  const [scale, unit] = end >= 1 ? [1, 's'] : end >= 1e-3 ? [1e-3, 'ms'] : [1e-6, 'µs'];
  return (t / scale).toFixed(Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / scale) - 1e-9)))) + ' ' + unit;
};

const tip = document.createElement('div');
tip.id = 'tip';
document.body.append(tip);
const showTip = (event, text) => {
  tip.style.display = text ? 'block' : 'none';
  if (!text) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + 'px';
  tip.style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18) + 'px';
};
for (const element of document.querySelectorAll('[data-tip]')) {
  element.addEventListener('mousemove', e => showTip(e, element.dataset.tip));
  element.addEventListener('mouseleave', e => showTip(e, ''));
}
const redraws = [];
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => redraws.forEach(f => f()));
addEventListener('resize', () => redraws.forEach(f => f()));

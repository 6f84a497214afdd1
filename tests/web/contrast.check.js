// Runs in the page: returns the texts on screen whose contrast with what is behind them is below WCAG's AA.
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });

/** A colour over another, as red, green and blue from 0 to 1. */
function over(colour, below) {
  canvas.fillStyle = `rgb(${below.map((part) => part * 255).join(" ")})`;
  canvas.fillRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255);
}

function luminance(colour) {
  const [red, green, blue] = colour.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function behind(node) {
  const parents = [];
  for (let each = node; each; each = each.parentElement) parents.unshift(each);
  return parents.reduce((below, each) => over(getComputedStyle(each).backgroundColor, below), [1, 1, 1]);
}

const low = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  const text = walker.currentNode.data.trim();
  if (text === "" || !node.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || node.closest(".unseen, [inert], svg, :disabled")) continue;
  const style = getComputedStyle(node);
  const ground = behind(node);
  const [light, dark] = [luminance(over(style.color, ground)), luminance(ground)].sort((a, b) => b - a);
  const size = parseFloat(style.fontSize);
  const wanted = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
  const ratio = (light + 0.05) / (dark + 0.05);
  if (ratio < wanted) low.push(`${ratio.toFixed(2)} for "${text.slice(0, 40)}"`);
}
return low;

// The data model of PyTorch's memory_viz, made anew: blocks as stacked polygons, one SVG node each.
//
// As in torch/utils/viz/MemoryViz.js, the largest blocks are drawn and the others summed up in one polygon; x counts
// events, and a block that goes shifts every one above it down, which costs each of them two corners.

// biome-ignore lint/correctness/noUnusedVariables: called by the page that loads this
function stackPolygons(log, most) {
  const sizes = new Map();
  for (const [block, size] of log) {
    if (size) {
      sizes.set(block, size);
    }
  }
  const largest = [...sizes.keys()].sort((a, b) => sizes.get(b) - sizes.get(a)).slice(0, most);
  const drawn = new Set(largest);
  const polygons = [];
  const stack = [];
  const rest = { size: 0, x: [], y: [], heights: [] };
  let x = 0;
  let total = 0;
  let highest = 1;
  const push = (polygon, y) => {
    polygon.x.push(x);
    polygon.y.push(y);
  };
  for (const [block, size] of log) {
    if (!drawn.has(block)) {
      rest.size += size || -sizes.get(block);
      x += 1;
    } else if (size) {
      const polygon = { block, size, x: [], y: [] };
      push(polygon, total);
      stack.push(polygon);
      polygons.push(polygon);
      total += size;
      x += 1;
    } else {
      const at = stack.findLastIndex(polygon => polygon.block === block);
      const [gone] = stack.splice(at, 1);
      push(gone, gone.y.at(-1));
      for (const above of stack.slice(at)) {
        const y = above.y.at(-1);
        push(above, y);
        above.x.push(x + 3);
        above.y.push(y - gone.size);
      }
      x += at < stack.length ? 3 : 1;
      total -= gone.size;
    }
    rest.x.push(x);
    rest.y.push(total);
    rest.heights.push(rest.size);
    highest = Math.max(highest, total + rest.size);
  }
  for (const polygon of stack) {
    push(polygon, polygon.y.at(-1));
  }
  return { polygons, rest, end: x, highest };
}

/** Draw them as SVG polygons in a group, which panning and zooming transform. */
// biome-ignore lint/correctness/noUnusedVariables: called by the page that loads this
function drawPolygons({ polygons, rest, end, highest }, width, height) {
  const space = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(space, 'svg');
  svg.setAttribute('width', width);
  svg.setAttribute('height', height);
  const group = document.createElementNS(space, 'g');
  const points = (xs, ys, heightAt) => {
    const corner = (i, y) =>
      `${((xs[i] / end) * width).toFixed(2)},${(height - (y / highest) * height).toFixed(2)}`;
    const lower = xs.map((_, i) => corner(i, ys[i]));
    const upper = xs.map((_, i) => corner(i, ys[i] + heightAt(i))).reverse();
    return [...lower, ...upper].join(' ');
  };
  const add = (text, color) => {
    const node = document.createElementNS(space, 'polygon');
    node.setAttribute('points', text);
    node.setAttribute('fill', color);
    group.append(node);
  };
  polygons.forEach((polygon, i) => {
    add(
      points(polygon.x, polygon.y, () => polygon.size),
      `hsl(${(i * 47) % 360} 55% 60%)`
    );
  });
  add(
    points(rest.x, rest.y, i => rest.heights[i]),
    '#bbb'
  );
  svg.append(group);
  document.body.replaceChildren(svg);
  return group;
}

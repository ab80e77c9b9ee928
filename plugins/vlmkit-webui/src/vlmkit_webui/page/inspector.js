// The image inspector: what became of each image, and the boxes and points that an answer names.

import { bitmapOf } from "./files.js";
import { button, element, visible } from "./dom.js";

const HEIGHT = 0.6; // of the window, for a drawing
const STAGES = [
  ["fetch", "Fetch and check"],
  ["decode", "Decode"],
  ["preprocess", "Preprocess"],
  ["encode", "Encode"],
];
const COLOURS = ["#e11d48", "#2563eb", "#16a34a", "#d97706", "#9333ea", "#0891b2"];

/** Return width and height of what the model sees: the used picture, cropped and padded. */
export function canvasSize({ used_size, crop, pad }) {
  const [width, height] = crop ? [crop[2] - crop[0], crop[3] - crop[1]] : used_size;
  return [width + pad[0] + pad[2], height + pad[1] + pad[3]];
}

/**
 * Return the tiles that a picture was cut into: left, top, right and bottom of each, in pixels of
 * what the model sees, row by row. A picture that was not cut is one tile.
 */
export function tileBorders(transform) {
  const { grid } = transform;
  if (!grid) return [[0, 0, ...canvasSize(transform)]];
  const [width, height] = grid.tile_size;
  const borders = [];
  for (let row = 0; row < grid.rows; row++) {
    for (let column = 0; column < grid.columns; column++) {
      const [left, top] = [column * grid.step[0], row * grid.step[1]];
      borders.push([left, top, left + width, top + height]);
    }
  }
  return borders;
}

/** Show the inspector of an answer's images in a dialog. */
export async function inspect(dialog, answer, images) {
  const close = button("close", "Close", () => dialog.close(), { isBare: true });
  const panels = images.map((each, index) => panelOf(each, index, answer, images.length));
  dialog.replaceChildren(
    element("header", {}, element("h2", { id: "inspector-title" }, "Images of this answer"), close),
    ...panels.map((panel) => panel.node),
  );
  dialog.showModal();
  await Promise.all(panels.map((panel) => panel.draw()));
}

function panelOf({ image, file, page }, index, answer, count) {
  const { transform } = image;
  const name = page ? `${file.name}, page ${page}` : file.name;
  const places = count === 1 ? answer.places : [];
  const seen = element("canvas", { role: "img", "aria-label": seenLabel(transform) });
  const original = element("canvas", { role: "img", "aria-label": placesLabel(places) });
  const figures = [
    transform && element("figure", {}, seen, element("figcaption", {}, "As the model sees it")),
    (places.length > 0 || !transform) && element("figure", {}, original, element("figcaption", {}, places.length ? "Named in the answer" : "As it was sent")),
  ];
  const node = element("section", { class: "inspected", "aria-labelledby": `inspected-${index}` },
    element("h3", { id: `inspected-${index}` }, ...visible(name)),
    element("div", { class: "figures" }, figures),
    element("div", { class: "facts" }, factsOf(image, answer.timing, index), transform && tilesOf(transform), placesOf(places)));
  const draw = async () => {
    const bitmap = await bitmapOf(file);
    const hasPixels = bitmap && !page;
    if (transform) drawSeen(seen, hasPixels ? bitmap : null, transform, page);
    if (places.length || !transform) drawOriginal(original, hasPixels ? bitmap : null, places, transform, page);
    bitmap?.close();
  };
  return { node, draw };
}

// Drawings.

/** Draw what the model sees, with the borders of its tiles. */
function drawSeen(canvas, bitmap, transform, page) {
  const [width, height] = canvasSize(transform);
  const context = sized(canvas, width, height);
  const scale = canvas.width / width;
  const [left, top] = transform.crop ?? [0, 0];
  const [x, y] = [transform.pad[0] - left, transform.pad[1] - top];
  const area = [x * scale, y * scale, transform.used_size[0] * scale, transform.used_size[1] * scale];
  hatch(context, canvas);
  if (bitmap) context.drawImage(resized(bitmap, transform.used_size), ...area);
  else paper(context, area, page);
  tileBorders(transform).forEach((tile, index) => {
    const [from, above, to, below] = tile.map((edge) => edge * scale);
    const inset = 1.5 * devicePixelRatio;
    for (const [width, colour] of [[3, "#ffffffb0"], [1.5, COLOURS[index % COLOURS.length]]]) {
      context.lineWidth = width * devicePixelRatio;
      context.strokeStyle = colour;
      context.strokeRect(from + inset, above + inset, to - from - 2 * inset, below - above - 2 * inset);
    }
  });
}

/** Return a picture with as many pixels as the model sees of it. */
function resized(bitmap, [width, height]) {
  const canvas = element("canvas", { width, height });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  return canvas;
}

/** Draw the picture as it was sent, with the boxes and points that an answer names. */
function drawOriginal(canvas, bitmap, places, transform, page) {
  const [width, height] = transform?.upright_size ?? (bitmap ? [bitmap.width, bitmap.height] : [640, 480]);
  const context = sized(canvas, width, height);
  const scale = canvas.width / width;
  if (bitmap) context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  else paper(context, [0, 0, canvas.width, canvas.height], page);
  places.forEach((place, index) => {
    context.strokeStyle = context.fillStyle = COLOURS[index % COLOURS.length];
    context.lineWidth = 2.5 * devicePixelRatio;
    const [x, y] = (place.box ?? place.point).map((edge) => edge * scale);
    if (place.box) {
      const [, , right, bottom] = place.box.map((edge) => edge * scale);
      context.strokeRect(x, y, right - x, bottom - y);
    } else {
      context.beginPath();
      context.arc(x, y, 5 * devicePixelRatio, 0, 2 * Math.PI);
      context.fill();
    }
    badge(context, String(index + 1), x, y);
  });
}

/** Set the size of a canvas to what it can show of a picture here, and return its context. */
function sized(canvas, width, height) {
  const { clientWidth } = canvas.parentElement;
  const room = clientWidth - 2 * parseFloat(getComputedStyle(canvas.parentElement).paddingLeft);
  const scale = Math.min(room / width, (innerHeight * HEIGHT) / height) * devicePixelRatio;
  canvas.style.width = `${(width * scale) / devicePixelRatio}px`;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale <= 1;
  return context;
}

/** Draw the ground of pixels that are added around a picture. */
function hatch(context, { width, height }) {
  context.fillStyle = "#d4d4d8";
  context.fillRect(0, 0, width, height);
  context.strokeStyle = "#a1a1aa";
  for (let at = -height; at < width; at += 14) {
    context.beginPath();
    context.moveTo(at, height);
    context.lineTo(at + height, 0);
    context.stroke();
  }
}

/** Draw a sheet in place of a picture that the browser cannot show. */
function paper(context, [x, y, width, height], page) {
  context.fillStyle = "#fafafa";
  context.fillRect(x, y, width, height);
  context.fillStyle = "#52525b";
  context.font = `${16 * devicePixelRatio}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.fillText(page ? `Page ${page}` : "Not shown by this browser", x + width / 2, y + height / 2, width);
}

function badge(context, text, x, y) {
  const unit = devicePixelRatio;
  context.font = `bold ${13 * unit}px system-ui, sans-serif`;
  const width = context.measureText(text).width + 10 * unit;
  const top = Math.max(0, y - 19 * unit);
  context.fillRect(x, top, width, 19 * unit);
  context.fillStyle = "#fff";
  context.textAlign = "left";
  context.fillText(text, x + 5 * unit, top + 14 * unit);
}

function seenLabel(transform) {
  if (!transform) return "";
  const [width, height] = canvasSize(transform);
  const count = tileBorders(transform).length;
  return `The picture as the model sees it, ${width} by ${height} pixels${count > 1 ? `, in ${count} tiles` : ""}`;
}

function placesLabel(places) {
  return places.length ? `The picture with ${places.length} named places` : "The picture as it was sent";
}

// Facts.

function factsOf(image, timing, index) {
  const { transform, num_tokens, cached, page } = image;
  const size = ([width, height]) => `${format(width)} × ${format(height)}`;
  const stages = STAGES.flatMap(([name, label]) => {
    const took_ms = timing[`image${index}_${name}`];
    return took_ms === undefined ? [] : [[label, `${took_ms.toFixed(1)} ms`]];
  });
  return list([
    ["Tokens", format(num_tokens)],
    ["Features", cached ? "from the cache" : "computed"],
    ...(page ? [["Page", format(page)]] : []),
    ...(transform ? [
      ["File", size(transform.source_size)],
      ...(transform.turned ? [["Turned upright", size(transform.upright_size)]] : []),
      ["Resized to", size(transform.used_size)],
      ["Scale", transform.scale.map((each) => each.toFixed(3)).join(" × ")],
      ...(transform.crop ? [["Kept part", edges(transform.crop)]] : []),
      ...(transform.pad.some((each) => each) ? [["Padding", edges(transform.pad)]] : []),
      ["Pictures for the encoder", format(transform.num_tiles)],
    ] : [["Transform", "not reported by this model's processor"]]),
    ...stages,
  ]);
}

function tilesOf(transform) {
  const borders = tileBorders(transform);
  const whole = transform.num_tiles - borders.length;
  const rows = borders.map((tile, index) => element("tr", {}, element("th", { scope: "row" }, String(index + 1)), tile.map((edge) => element("td", {}, format(edge)))));
  const head = element("tr", {}, ["Tile", "Left", "Top", "Right", "Bottom"].map((name) => element("th", { scope: "col" }, name)));
  return element("details", {},
    element("summary", {}, `${borders.length} ${borders.length === 1 ? "tile" : "tiles"}${whole > 0 ? ", and the whole picture once more" : ""}`),
    element("table", { class: "tiles" }, element("caption", { class: "visually-hidden" }, "Borders of the tiles in pixels"), element("thead", {}, head), element("tbody", {}, rows)));
}

function placesOf(places) {
  if (!places.length) return null;
  const items = places.map(({ label, box, point }) => element("li", {}, element("bdi", {}, ...visible(label || "without a name")), element("span", { class: "where" }, edges(box ?? point))));
  return element("ol", { class: "places", "aria-label": "Named places" }, items);
}

function list(rows) {
  return element("dl", {}, rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function edges(numbers) {
  return numbers.map((each) => format(Math.round(each * 10) / 10)).join(", ");
}

function format(number) {
  return number.toLocaleString("en-US");
}

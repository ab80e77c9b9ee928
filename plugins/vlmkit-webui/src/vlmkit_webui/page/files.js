// Files of a message: what they are, whether the server takes them, and how they are sent.
//
// A file is checked before it is sent. Limits are those of the model, in the server's words. What
// a file is that no model takes, the server says: it gets the first bytes, and never the file.

const START_BYTES = 1024;
const THUMBNAIL = 320;

/** Return what the first bytes of a file show, and by which loader the server opens it. */
function kindOf(start) {
  const text = String.fromCharCode(...start);
  const brand = text.slice(4, 8) === "ftyp" ? text.slice(8, 12) : "";
  if (text.startsWith("\x89PNG\r\n\x1a\n")) return { type: "image/png", loader: "image" };
  if (text.startsWith("\xff\xd8\xff")) return { type: "image/jpeg", loader: "image" };
  if (text.startsWith("GIF8")) return { type: "image/gif", loader: "image" };
  if (text.startsWith("BM")) return { type: "image/bmp", loader: "image" };
  if (text.startsWith("RIFF") && text.slice(8, 12) === "WEBP") return { type: "image/webp", loader: "image" };
  if (brand === "avif" || brand === "avis") return { type: "image/avif", loader: "image" };
  if (text.startsWith("II*\0") || text.startsWith("MM\0*")) return { type: "image/tiff", loader: "tiff" };
  if (["heic", "heix", "heim", "heis", "mif1", "msf1"].includes(brand)) return { type: "image/heic", loader: "heif" };
  if (text.trimStart().startsWith("%PDF-")) return { type: "application/pdf", loader: "pdf" };
  return { type: "application/octet-stream", loader: "" };
}

/**
 * Return a file of a message.
 *
 * @param blob its content.
 * @param name its name, as a label.
 * @returns {Promise<object>} `type` is what its content shows; `width` and `height` are those of
 *   the upright picture, or null where the browser cannot show it.
 */
export async function fileOf(blob, name) {
  const start = new Uint8Array(await blob.slice(0, START_BYTES).arrayBuffer());
  const file = { name: name || "image", blob, ...kindOf(start), start, width: null, height: null, thumbnail: null };
  const bitmap = await bitmapOf(file);
  if (bitmap) {
    file.width = bitmap.width;
    file.height = bitmap.height;
    file.thumbnail = scaled(bitmap);
    bitmap.close();
  }
  return file;
}

/** Return the upright picture of a file, or null where the browser cannot show it. */
export async function bitmapOf(file) {
  if (!file.type.startsWith("image/")) return null;
  try {
    return await createImageBitmap(file.blob);
  } catch {
    return null;
  }
}

function scaled(bitmap) {
  const scale = Math.min(1, THUMBNAIL / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/**
 * Return why a model does not take a file, in the server's words; null if it may be sent.
 *
 * @param file the file.
 * @param model the model's capabilities; null while they are unknown.
 * @param ask asks the server about the first bytes, as a `data:` URL; returns its message or null.
 */
export async function refusalOf(file, model, ask) {
  if (!model?.limits) return null; // the model was not loaded yet: the server decides
  if (!model.modalities.includes("image")) return "this model takes no images";
  const { max_bytes, max_pixels, min_side_pixels, max_aspect_ratio } = model.limits.images;
  if (!file.loader || !["image", ...model.media_loaders].includes(file.loader)) {
    const url = `data:application/octet-stream;base64,${await base64Of(file.blob.slice(0, START_BYTES))}`;
    return (await ask(url)) ?? "the server does not take this file";
  }
  if (file.loader === "pdf") return null; // limits are those of its pages
  if (file.blob.size > max_bytes) return `image file is over ${max_bytes} bytes`;
  const { width, height } = file;
  if (width === null) return null;
  if (width * height > max_pixels) return `image of ${width}x${height} is over ${max_pixels} pixels`;
  const [short, long] = [Math.min(width, height), Math.max(width, height)];
  if (short < min_side_pixels) return `image of ${width}x${height} has a side under ${min_side_pixels} pixels`;
  if (long > max_aspect_ratio * short) {
    return `image of ${width}x${height} is more than ${max_aspect_ratio} times as long as it is wide`;
  }
  return null;
}

/** Return a file's content in base64; it is encoded once. */
export function contentOf(file) {
  file.content ??= base64Of(file.blob);
  return file.content;
}

function base64Of(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error("The file cannot be read."));
    reader.readAsDataURL(blob);
  });
}

/** Return the part of a message that is a file, with a text in place of its content. */
export function partOf(file, content) {
  const url = `data:${file.type};base64,${content}`;
  if (file.loader === "pdf") return { type: "file", file: { filename: file.name, file_data: url } };
  return { type: "image_url", image_url: { url } };
}

/** Return the file of base64 in a conversation's file. */
export async function fileOfBase64({ name, type, content }) {
  let bytes;
  try {
    bytes = Uint8Array.from(atob(content), (char) => char.charCodeAt(0));
  } catch {
    throw new Error("The content is not base64.");
  }
  return fileOf(new Blob([bytes], { type }), name);
}

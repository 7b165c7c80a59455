// The service, from the page's side.

const KEY = "hyphash-token";
const PATIENCE = 3; // times that a busy service is asked again

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

// `hyphash start` opens the page with the token behind the #: it never leaves the browser, nor stays in the address.
const given = /^#token=([^&]+)/.exec(location.hash);
if (given) {
  token.set(decodeURIComponent(given[1]));
  history.replaceState(history.state, "", location.pathname + location.search);
}

export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined && item !== "") query.append(key, item);
    }
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

async function call(url, options = {}, patience = PATIENCE) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the service does not answer");
  }
  if (answer.status === 503 && patience > 0) {
    const seconds = Number(answer.headers.get("Retry-After")) || 1;
    await new Promise((done) => setTimeout(done, seconds * 1000));
    return call(url, options, patience - 1);
  }
  const body = answer.status === 204 ? null : await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  if (answer.status === 401) token.set("");
  throw new ApiError(answer.status, body?.error ?? `the service answers ${answer.status}`);
}

export const get = (path, parameters, signal) => call(address(path, parameters), { signal });

export function upload(file, parameters, signal) {
  const body = new FormData();
  body.append("photo", file, file.name || "photo");
  return call(address("/api/search", parameters), { method: "POST", body, signal });
}

export function change(method, path, content) {
  const headers = { Authorization: `Bearer ${token.get()}` };
  if (content) headers["Content-Type"] = "application/json";
  return call(path, { method, headers, body: content && JSON.stringify(content) });
}

export const picture = (id, kind = "thumbnail") => `/api/photos/${id}/${kind}`;

// Builds and updates the page. Every text is a text node: no name of a client is ever read as HTML.

const SVG = 'http://www.w3.org/2000/svg';
/** What counts by itself, see tick of app.js: its text and its bar are not of the state. */
const COUNTED = ['until', 'since', 'from'];
const SVG_TAGS = new Set(['svg', 'path', 'polyline', 'line', 'rect', 'g', 'circle', 'title']);

/** An element: h('td', {class: 'n', title: name}, children…). Children that are null or false are left out. */
export function h(tag, attributes, ...children) {
  const node = SVG_TAGS.has(tag) && (tag !== 'title') ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'on') {
      for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    } else if (name === 'style') {
      // By the object model: the page's policy forbids style attributes.
      for (const [property, text] of Object.entries(value)) node.style.setProperty(property, text);
    } else {
      node.setAttribute(name, value === true ? '' : String(value));
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

let lastCopied = '';

/** A command and a button that copies it. The button says so until another command is copied. */
export function copied(command, label = 'Copy') {
  const copy = async ({ currentTarget: button }) => {
    const text = button.parentNode.querySelector('code').textContent;
    await navigator.clipboard.writeText(text);
    lastCopied = text;
    button.textContent = 'Copied';
  };
  return h('span', { class: 'copy' }, h('code', { 'data-testid': 'command' }, command), ' ', h('button', { type: 'button', class: 'button', 'data-testid': 'copy', on: { click: copy } }, lastCopied === command ? 'Copied' : label));
}

/** A sentence of the server; the command of kquota that it ends in, if any, can be copied. */
export function withCommand(text) {
  const at = text.search(/(KQUOTA_\w+=('[^']*'|\S)+ )*\S*kquota [a-z]/);
  return at < 0 ? text : [text.slice(0, at), copied(text.slice(at).replace(/\.$/, ''))];
}

/** Makes the children of a node equal to new ones, and touches only what differs: focus and selection stay. */
export function show(parent, ...children) {
  const fresh = document.createElement('div');
  for (const child of children.flat(Infinity)) if (child) fresh.append(child);
  patchChildren(parent, fresh);
}

function patchChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) if (child.dataset && child.dataset.key) keyed.set(child.dataset.key, child);
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const key = wanted.dataset && wanted.dataset.key;
    let found = key ? keyed.get(key) : at;
    if (key && found) keyed.delete(key);
    if (!found || !alike(found, wanted)) {
      old.insertBefore(wanted, at);
      continue;
    }
    if (found !== at) old.insertBefore(found, at);
    else at = at.nextSibling;
    patch(found, wanted);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function alike(one, other) {
  const key = (node) => (node.dataset && node.dataset.key) || '';
  return one.nodeName === other.nodeName && key(one) === key(other) && one.nodeType === other.nodeType;
}

function patch(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.hasAttribute('data-keep') && old.dataset.keep === fresh.dataset.keep) return;
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== 'style') old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) {
    if (name !== 'style' && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (COUNTED.some((name) => name in old.dataset)) return;
  if (old.style && fresh.style && old.style.cssText !== fresh.style.cssText) {
    for (const property of [...old.style]) if (!fresh.style.getPropertyValue(property)) old.style.removeProperty(property);
    for (const property of fresh.style) old.style.setProperty(property, fresh.style.getPropertyValue(property));
  }
  if (old.nodeName === 'INPUT' || old.nodeName === 'SELECT' || old.nodeName === 'TEXTAREA') return;
  patchChildren(old, fresh);
}

// Talks to the server, in JSON. A token is kept for this tab alone.

const KEY = 'kquota-token';

export class NeedsToken extends Error {}

export class Refused extends Error {
  constructor(answer, status) {
    super(answer.error || 'the dashboard did not answer');
    this.fix = answer.fix || '';
    this.isFinal = status < 500;
  }
}

export function setToken(token) {
  sessionStorage.setItem(KEY, token);
}

export const hasToken = () => Boolean(sessionStorage.getItem(KEY));

function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** Whether the API answers to this page's token, or to none. */
export async function isLetIn() {
  return (await (await fetch('/access', { headers: headers() })).json()).accepted;
}

export async function ask(path, parameters = {}, signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  const query = new URLSearchParams(given);
  const answer = await fetch(`/api/v1/${path}${given.length ? `?${query}` : ''}`, { headers: headers(), signal });
  if (answer.status === 401) throw new NeedsToken();
  const found = await answer.json();
  if (!answer.ok) throw new Refused(found, answer.status);
  return found;
}

/** Calls load as soon as everyMs have passed since place was asked for last: now, or later in place of an earlier call. */
export function loadSoon(place, everyMs, load) {
  const wait = everyMs - (Date.now() - place.asked);
  clearTimeout(place.later);
  if (wait <= 0) load();
  else place.later = setTimeout(load, wait);
}

/** Ends what a view still asks for. */
export function giveUp(place) {
  place.over.abort();
  clearTimeout(place.later);
}

/** Asks for the state each second: calls onState with it, or onLost where there is none; returns what ends it. */
export function follow(path, onState, onLost) {
  const over = new AbortController();
  (async () => {
    while (!over.signal.aborted) {
      try {
        onState(await ask(path, {}, over.signal));
      } catch (error) {
        if (over.signal.aborted) return;
        onLost(error);
        if (error instanceof NeedsToken || error.isFinal) return;
      }
      await new Promise((done) => setTimeout(done, 1_000));
    }
  })();
  return () => over.abort();
}

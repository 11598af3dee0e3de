// The page: wires its elements to the connection, the player and the speech.

import { CloneForm } from "./clone.js";
import { Link, apiKey, keepApiKey } from "./link.js";
import { Player } from "./player.js";
import { Speech } from "./speech.js";
import { View } from "./view.js";

const view = new View(document);
const player = new Player();
const link = new Link(location.origin, (state, error) => {
  view.showLink(state, error, link);
  if (state !== "open") return;
  view.showSession(link.client.session);
  describeVoices();
});
let speech = null;
let presses = 0; // of Speak and Stop: each undoes what came of those before it

/** The names alone are in the greeting. Without an answer they must do. */
async function describeVoices() {
  const headers = apiKey() ? { Authorization: `Bearer ${apiKey()}` } : {};
  const answer = await fetch("/v1/audio/voices", { headers }).catch(() => null);
  const told = answer?.ok ? await answer.json().catch(() => null) : null;
  if (told) view.describeVoices(told.data);
}

async function speak(clickedMs) {
  const text = view.text;
  view.clearError();
  if (!text.trim()) return view.showStatus("Write something first.");
  const press = ++presses;
  speech?.stop(clickedMs);
  let made = null;
  try {
    const client = await link.use();
    await player.prepare(client.session.sample_rate);
    if (press !== presses) return;
    made = speech = new Speech(client, player, handlers(() => made), clickedMs);
  } catch (error) {
    if (press === presses) view.showError(error);
    return;
  }
  view.begin(made);
  animate(made);
  await made.run(text, view.voice, view.wordsPerSecond);
}

function stop(nowMs) {
  presses++;
  if (!speech || speech.over) return;
  speech.stop(nowMs);
  if (speech.stopped && !speech.over) view.showStatus("Stopping…");
}

/** What a speech tells; one that another has replaced tells nobody. */
function handlers(mine) {
  const mineOnly = (act) => (value) => mine() === speech && act(value);
  return {
    changed: mineOnly(() => view.showFigures(speech)),
    chunk: mineOnly((samples) => view.addSamples(samples)),
    fed: mineOnly((text) => view.showFed(text)),
    error: mineOnly((error) => view.showSpeechError(error)),
    warning: mineOnly((message) => view.addWarning(message)),
    ended: mineOnly((outcome) => view.end(speech, outcome)),
  };
}

function animate(mine) {
  if (mine !== speech) return;
  view.draw(mine);
  if (!mine.over) requestAnimationFrame(() => animate(mine));
}

new CloneForm(document, (name) => view.addVoice(name));
view.onSpeak = speak;
view.onStop = stop;
view.onRetry = () => link.start();
view.onKey = (key) => {
  keepApiKey(key);
  link.start();
};
// Opening the sound takes a moment and needs a gesture: the first one will do.
for (const gesture of ["pointerdown", "keydown"]) {
  document.addEventListener(gesture, () => warm(), { once: true });
}
function warm() {
  const session = link.client?.session;
  if (session) player.prepare(session.sample_rate).catch(() => {}); // told at Speak
}
link.start();

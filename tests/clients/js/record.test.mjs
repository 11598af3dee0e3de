// The page's arithmetic, without a page.

import assert from "node:assert/strict";
import { test } from "node:test";

import { SpeechRecord, wordsOf } from "../../../service/page/record.js";

const chunk = (arrivedMs, ms, discontinuity = false) => ({
  samples: { length: 24 * ms },
  arrivedMs,
  discontinuity,
});

test("words join up to the text", () => {
  for (const text of ["", " ", "One", "  One two,\n three. ", "日本 語"]) {
    assert.equal(wordsOf(text).join(""), text.trim() ? text : "");
  }
  assert.deepEqual(wordsOf("One two, three."), ["One ", "two, ", "three."]);
});

test("figures count from the click", () => {
  const record = new SpeechRecord(1000, 24_000);
  record.onTextDone(1001);
  record.onChunk(chunk(1100, 80));
  record.onBegan(0, 1110);
  record.onAudible(1130);
  record.onAudible(1140);
  record.onChunk(chunk(1150, 160));
  record.onBegan(1, 1190);
  const figures = record.figures();
  assert.equal(figures.clickToSoundMs, 130);
  assert.equal(figures.audioMs, 240);
  assert.equal(figures.chunks, 2);
  assert.equal(figures.leastLeadMs, 40);
  assert.equal(figures.underruns + figures.pauses, 0);
  assert.equal(figures.rtf, null);
});

test("a gap after the text is an underrun, before its end a pause unless the server says so", () => {
  const record = new SpeechRecord(0, 24_000);
  record.onChunk(chunk(100, 100));
  record.onBegan(0, 100);
  record.onChunk(chunk(250, 100)); // dry from 200 to 250, text still coming
  record.onGap(1, 50);
  record.onBegan(1, 250);
  record.onChunk(chunk(380, 100, true)); // dry from 350 to 380, told by the server
  record.onGap(2, 30);
  record.onBegan(2, 380);
  record.onTextDone(400);
  record.onChunk(chunk(490, 100)); // dry from 480 to 490, all text sent
  record.onGap(3, 10);
  record.onBegan(3, 490);
  const figures = record.figures();
  assert.deepEqual([figures.pauses, figures.pauseMs], [1, 50]);
  assert.deepEqual([figures.underruns, figures.underrunMs], [2, 40]);
});

// Types of talkwire.js. Fields in snake_case are the protocol's own (docs/reference/protocol.md).

export const SUBPROTOCOL: "talkwire.tts.v1";
export const PATH: "/v1/tts/stream";
export const KEY_SUBPROTOCOL: "talkwire.key.";
export const HEADER_BYTES: 12;

export type Encoding = "pcm_s16le" | "pcm_f32le" | "pcm_mulaw" | "pcm_alaw" | "opus" | (string & {});

/** An error with a code for programs and a sentence for people. */
export class TalkwireError extends Error {
  constructor(code: string, message: string, fields?: Record<string, unknown>);
  readonly code: string;
  readonly retryable: boolean;
  readonly retryAfterMs: number | null;
  readonly param: string | null;
  readonly contextId: string | null;
  readonly requestId: string | null;
}

export interface FrameHeader {
  handle: number;
  sequence: number;
  sampleOffset: number;
  first: boolean;
  last: boolean;
  discontinuity: boolean;
}

export interface AudioChunk extends FrameHeader {
  /** Linear PCM in [-1, 1]; null for other encodings. */
  samples: Float32Array | null;
  /** The audio in the context's encoding. */
  bytes: Uint8Array;
  /** As of `performance.now()`. */
  arrivedMs: number;
}

/** Reads the 12 bytes before the samples. */
export function parseHeader(buffer: ArrayBuffer): FrameHeader;
/** Reads the linear PCM behind the header; null for other encodings. */
export function readSamples(buffer: ArrayBuffer, encoding: Encoding): Float32Array | null;

export interface Word {
  text: string;
  /** Characters `[start, end)` of the context's text. */
  start: number;
  end: number;
  start_ms: number;
  end_ms: number;
}

export interface Warning {
  context_id: string;
  kind: string;
  message: string;
}

export interface Cancelled {
  context_id: string;
  generated_ms: number;
  sent_ms: number;
  played_ms: number;
  text_spoken: string;
  text_remaining: string;
}

/** What the server says of itself. */
export interface SessionInfo {
  session_id: string;
  model: string;
  voices: string[];
  sample_rate: number;
  limits: { max_message_bytes: number; max_text_chars: number; [name: string]: number };
  [field: string]: unknown;
}

export interface AudioOptions {
  encoding?: Encoding;
  sample_rate?: number;
  bitrate?: number;
  frame_ms?: number;
  speed?: number;
  fade_in_ms?: number;
}

/** The fields of `context.create`, and callbacks. */
export interface ContextOptions {
  context_id?: string;
  voice?: string;
  model?: string;
  language?: string;
  audio?: AudioOptions;
  timestamps?: boolean;
  /** If it is given, the context is not to be iterated. */
  onAudio?: (chunk: AudioChunk) => void;
  /** What did not end the context. */
  onError?: (error: TalkwireError) => void;
  onWarning?: (warning: Warning) => void;
  onCancelled?: (cancelled: Cancelled) => void;
  /** It asks for `timestamps`. */
  onWords?: (words: Word[]) => void;
  [field: string]: unknown;
}

export type TextSource = string | Iterable<string> | AsyncIterable<string>;

/** One stream of text in and one stream of audio out. */
export class Context implements AsyncIterable<AudioChunk> {
  private constructor();
  readonly id: string;
  readonly encoding: Encoding;
  readonly sampleRate: number;
  readonly delaySamples: number;
  readonly handle: number | null;
  readonly metrics: Record<string, unknown> | null;
  readonly reason: "complete" | "length" | "error" | null;
  readonly cancelled: Cancelled | null;
  readonly errors: TalkwireError[];
  readonly words: Word[];
  /** Resolves to the context, also when it was cancelled; rejects with what ended it. */
  readonly finished: Promise<Context>;
  append(text: string): void;
  flush(flushId?: string): Promise<void>;
  end(): void;
  feed(text: TextSource): Promise<void>;
  reportPlayed(samples: number): void;
  /** Null: it was over already. */
  cancel(playedMs?: number): Promise<Cancelled | null>;
  [Symbol.asyncIterator](): AsyncGenerator<AudioChunk, void, undefined>;
}

/** One socket and its contexts. */
export class Client {
  private constructor();
  readonly session: SessionInfo;
  readonly isOpen: boolean;
  createContext(options?: ContextOptions): Promise<Context>;
  speak(text: TextSource, options?: ContextOptions): Promise<Context>;
  /** Milliseconds to the server and back. */
  ping(): Promise<number>;
  close(): void;
}

export interface ConnectOptions {
  apiKey?: string;
  /** An implementation of the standard WebSocket. */
  WebSocket?: new (url: string, protocols?: string | string[]) => unknown;
  openTimeoutMs?: number;
  onClose?: (error: TalkwireError) => void;
  onGoingAway?: (deadlineMs: number) => void;
}

/** Connects to any address of a server, and waits for its greeting. */
export function connect(url: string, options?: ConnectOptions): Promise<Client>;

/** The address at which a text's speech is to be had, for `<audio src>`. */
export function speechUrl(
  url: string,
  input: string,
  fields?: { apiKey?: string; [field: string]: string | number | boolean | null | undefined },
): string;

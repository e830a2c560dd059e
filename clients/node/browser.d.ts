export type FormState = 'reading' | 'editing' | 'queued' | 'offered' | 'lost';

export interface FormFacts {
  holder?: string | null;
  /** ISO 8601 */
  since?: string | null;
  queued?: number;
  free?: boolean;
  place?: number;
  /** lost: as LockLost.reason; reading: offer_over */
  reason?: string;
  by?: string;
  why?: string;
  error?: string;
}

export interface FormEvents {
  state: CustomEvent<{ state: FormState } & FormFacts>;
  asked: CustomEvent<{ message: string | null; from: string | null }>;
}

/** Sends 'state' events, whose detail is the state and the facts, and 'asked' ones with { message, from } */
export class Form extends EventTarget {
  constructor(url: string);
  readonly state: FormState;
  readonly facts: FormFacts;
  readonly left: number;
  readonly headers: { 'Atomic-Lock': string };
  open(): Promise<FormState>;
  queue(options?: { auto?: boolean }): Promise<FormState>;
  take(): Promise<FormState>;
  leave(): Promise<FormState>;
  ask(message: string): Promise<FormState>;
  takeOver(message: string): Promise<FormState>;
  check(): void;
  addEventListener<K extends keyof FormEvents>(type: K, listener: (event: FormEvents[K]) => void, options?: boolean | AddEventListenerOptions): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
  removeEventListener<K extends keyof FormEvents>(type: K, listener: (event: FormEvents[K]) => void, options?: boolean | EventListenerOptions): void;
  removeEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | EventListenerOptions): void;
}

export function edit(url: string): Form;

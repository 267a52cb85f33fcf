/**
 * Tools of agents that a Binnacle mesh decides before they run. A tool runs only after the
 * mesh has allowed it, and its outcome becomes a receipt that the caller attests. The
 * modules beside this one connect frameworks.
 */

import { createHash } from 'node:crypto'

/** A call of a tool, before its decision. */
export interface Action {
  /** Name of the tool. */
  tool: string
  /** Input of the tool, a JSON value. */
  input: unknown
  /** Kind of the call; `client.other` if absent. */
  kind?: string
  /** Arguments of a call with a kind, instead of the input; those of kinds `client.…` get the agent and its workspace. */
  args?: Record<string, unknown>
}

/** What policy decided about a call. */
export interface Decision {
  verdict: 'ALLOW' | 'DENY' | 'ESCALATE'
  reasonCode: string
  /** Why the call was not allowed, for the model or a person. */
  message: string
  callId: string
  sessionId: string
  /** Id of the receipt; that of an allowed call exists once its outcome is recorded. */
  receiptId: string
  /** Of an allowed call: the permission to run it once. */
  intentId?: string
  argsDigest?: string
  reportBy?: string
  /** Of an allowed call: the decision as policy signed it. */
  signed?: unknown
}

/** The recorded outcome of a call. */
export interface Receipt {
  receiptId: string
  callId: string
  sessionId: string
  /** `unknown` if the report arrived after its deadline. */
  status: string
  /** `caller`, since the caller ran the tool. */
  attestedBy: string
}

/** What a caller reports about a call that it ran. */
export interface Outcome {
  status: 'succeeded' | 'failed' | 'timed_out' | 'cancelled'
  errorCode?: string
  errorMessage?: string
  output?: unknown
}

export interface Result<T> {
  output: T
  decision: Decision
  /** Absent if the outcome could not be recorded, or the output is a stream that has not ended. */
  receipt?: Receipt
}

/** The request was not answered, or was refused for a reason other than policy. The tool did not run. */
export class MeshError extends Error {
  constructor(message: string, readonly code: string, readonly status: number) {
    super(message)
    this.name = 'MeshError'
  }
}

/** Policy denied the call, or it still waits for a person's approval. The tool did not run. */
export class Denied extends Error {
  constructor(readonly decision: Decision) {
    super(decision.message)
    this.name = 'Denied'
  }
}

export interface Options {
  /** Address of the mesh; `BINNACLE_ADDR` or http://127.0.0.1:8080 if absent. */
  url?: string
  /** Bearer token with the scopes `calls:decide` and `tools:call`; `BINNACLE_TOKEN` if absent. */
  token?: string | (() => string | Promise<string>)
  /** Name of the session, `s-…`; a random one if absent. */
  session?: string
  /** Name of the agent in the arguments of its calls; `sdk` if absent. */
  agent?: string
  /** Folder of the agent's files in the arguments of its calls; the current one if absent. */
  workspace?: string
  /** Milliseconds for which a call may wait for a person's approval; 5 minutes if absent. */
  wait?: number
  /** Milliseconds in which a tool must end; 10 minutes if absent. */
  reportWithin?: number
  /** Record outputs themselves, and not only their digests. */
  content?: boolean
  /** Returns the kind and the arguments of a tool's calls, for rules that also apply to other agents; `client.other` with tool and input if absent or undefined. */
  kinds?: (tool: string, input: any) => { kind: string; args: Record<string, unknown> } | undefined
  fetch?: typeof fetch
  /** Receives each decision. */
  onDecision?: (decision: Decision, action: Action) => void
  /** Receives each recorded outcome. */
  onReceipt?: (receipt: Receipt, action: Action) => void
  /** Receives the reason if the outcome of a tool that ran could not be recorded; console.error if absent. */
  onUnreported?: (error: unknown, decision: Decision) => void
}

/** Milliseconds for which one request may wait. */
const perRequest = 60_000

interface Reply {
  status: number
  body: Record<string, any>
}

/** Access to a mesh for one session. It can be used concurrently. */
export class Mesh {
  readonly session: string
  private readonly url: string
  private readonly o: Options

  constructor(options: Options = {}) {
    this.o = options
    const url = options.url ?? process.env['BINNACLE_ADDR'] ?? 'http://127.0.0.1:8080'
    this.url = (url.includes('://') ? url : 'http://' + url).replace(/\/+$/, '')
    this.session = options.session ?? 's-' + (options.agent ?? 'sdk').replace(/[^A-Za-z0-9_-]/g, '_') + '-' + crypto.randomUUID()
  }

  /** Returns a Mesh with some options replaced, in the same session. */
  with(options: Options): Mesh {
    return new Mesh({ ...this.o, session: this.session, ...options })
  }

  /** Returns an action with its kind and arguments. */
  private named(action: Action): Action {
    if (action.kind && !action.kind.startsWith('client.')) return { ...action, args: action.args ?? (action.input as Record<string, unknown>) }
    const { kind, args } = action.kind ? action : this.o.kinds?.(action.tool, action.input) ?? { kind: 'client.other', args: undefined }
    const common = { agent: this.o.agent ?? 'sdk', workspace: this.o.workspace ?? process.cwd() }
    return { ...action, kind: kind as string, args: { ...common, ...(args ?? { input: action.input ?? null, tool: action.tool }) } }
  }

  /**
   * Decides a call. If a person must approve it, decide waits as long as the options allow,
   * and then returns ESCALATE. It throws a MeshError if there is no decision.
   */
  async decide(action: Action, signal?: AbortSignal): Promise<Decision> {
    const until = Date.now() + (this.o.wait ?? 300_000)
    const { kind, args } = this.named(action)
    const body = { kind, tool: kind, args: args ?? {}, report_within_ms: this.o.reportWithin ?? 600_000 }
    let d = await this.ask(body, { 'Idempotency-Key': crypto.randomUUID(), Prefer: 'respond-async' }, 10_000, signal)
    while (d.verdict === 'ESCALATE' && until - Date.now() >= 1000) {
      d = await this.ask({ call_id: d.callId }, {}, Math.min(until - Date.now(), perRequest), signal)
    }
    this.o.onDecision?.(d, action)
    return d
  }

  /** Records the outcome of an allowed call. The same outcome can be reported again. */
  async report(decision: Decision, outcome: Outcome): Promise<Receipt> {
    const body: Record<string, unknown> = { args_digest: decision.argsDigest, status: outcome.status }
    if (outcome.errorCode) body['error_code'] = outcome.errorCode
    if (outcome.errorMessage) body['error_message'] = clip(outcome.errorMessage)
    if (outcome.status === 'succeeded' && outcome.output !== undefined) body['output'] = outcome.output
    const { status, body: b } = await this.post(`/api/v1/intents/${encodeURIComponent(decision.intentId ?? '')}/outcome`, body, {}, 10_000)
    if (status !== 200) throw refusal(status, b)
    return { receiptId: b['receipt_id'], callId: b['call_id'], sessionId: b['session_id'], status: b['status'], attestedBy: b['attested_by'] }
  }

  /**
   * Decides a call, runs it if it is allowed, and records its outcome. It throws Denied if
   * policy does not allow the call, and what execute throws. If the output is an async
   * iterable, its items pass unchanged, and the outcome is recorded at its end.
   */
  async run<T>(action: Action, execute: () => T | Promise<T>, signal?: AbortSignal): Promise<Result<T>> {
    const decision = await this.permit(action, signal)
    let output: T
    try {
      output = await execute()
    } catch (e) {
      await this.close(action, decision, failure(e))
      throw e
    }
    if (isStream(output)) return { output: this.follow(action, decision, output) as T, decision }
    return { output, decision, receipt: await this.close(action, decision, this.success(action, output)) }
  }

  /** As run, for a function that returns an async iterable: nothing runs before the first item is requested. */
  async *stream<T>(action: Action, execute: () => AsyncIterable<T>, signal?: AbortSignal): AsyncGenerator<T, void, void> {
    const decision = await this.permit(action, signal)
    let items: AsyncIterable<T>
    try {
      items = execute()
    } catch (e) {
      await this.close(action, decision, failure(e))
      throw e
    }
    yield* this.follow(action, decision, items)
  }

  /** Returns a function that runs fn only if its call is allowed; the input is its first argument. */
  wrap<A extends unknown[], R>(tool: string, fn: (...args: A) => R | Promise<R>): (...args: A) => Promise<R> {
    return async (...args: A) => (await this.run<R>({ tool, input: args[0] }, () => fn(...args))).output
  }

  /** Returns the decision of an allowed call. It throws Denied if policy does not allow the call. */
  async permit(action: Action, signal?: AbortSignal): Promise<Decision> {
    const proposed = JSON.stringify([action.input, action.args])
    const d = await this.decide(action, signal)
    if (d.verdict !== 'ALLOW') throw new Denied(d)
    if (JSON.stringify([action.input, action.args]) !== proposed) {
      await this.close(action, d, { status: 'cancelled', errorCode: 'input_changed', errorMessage: 'the input changed after its decision; nothing ran' })
      throw new MeshError(`${action.tool}: the input changed after its decision; pass an object that is not modified`, 'input_changed', 0)
    }
    return d
  }

  /** Records an outcome, and returns undefined if that is not possible: the tool has run, so that throwing would make an agent repeat it. */
  async close(action: Action, decision: Decision, outcome: Outcome): Promise<Receipt | undefined> {
    for (let attempt = 0; ; attempt++) {
      try {
        const r = await this.report(decision, outcome)
        this.o.onReceipt?.(r, action)
        return r
      } catch (e) {
        if (attempt < 3 && e instanceof MeshError && (e.status === 0 || e.status === 429 || e.status >= 500)) {
          await new Promise((done) => setTimeout(done, 100 << attempt))
          continue
        }
        if (this.o.onUnreported) this.o.onUnreported(e, decision)
        else console.error(`binnacle: the outcome of ${decision.callId} was not recorded, and will be unknown:`, e)
        return undefined
      }
    }
  }

  /** Returns the outcome of a tool that returned output. */
  success(action: Action, output: unknown): Outcome {
    const text = textOf(output)
    const digest = digestOf(createHash('sha256').update(text))
    if (typeof output === 'object' && output !== null && (output as { isError?: unknown }).isError === true) { // a failure as a value, as MCP's tools return it
      return { status: 'failed', errorCode: 'agent_tool_failed', errorMessage: 'the tool failed; its output has the digest ' + digest }
    }
    if (action.kind && !action.kind.startsWith('client.')) return { status: 'succeeded', output }
    return { status: 'succeeded', output: { bytes: Buffer.byteLength(text), output_digest: digest, ...(this.o.content ? { content: JSON.parse(text) as unknown } : {}) } }
  }

  /** Passes the items of an output on unchanged, and records its outcome at its end. The digest is that of a line of JSON for each item. */
  private async *follow<T>(action: Action, decision: Decision, items: AsyncIterable<T>): AsyncGenerator<T, void, void> {
    let outcome: Outcome = { status: 'cancelled', errorCode: 'stream_left', errorMessage: 'the reader left the stream before its end' }
    const hash = createHash('sha256')
    let bytes = 0
    try {
      for await (const item of items) {
        const line = textOf(item) + '\n'
        hash.update(line)
        bytes += Buffer.byteLength(line)
        yield item
      }
      outcome = { status: 'succeeded', output: { bytes, output_digest: digestOf(hash) } }
    } catch (e) {
      outcome = failure(e)
      throw e
    } finally {
      await this.close(action, decision, outcome)
    }
  }

  private async ask(body: unknown, headers: Record<string, string>, within: number, signal?: AbortSignal): Promise<Decision> {
    headers['X-Binnacle-Timeout'] = String(Math.max(1, Math.floor(within / 1000)))
    let reply: Reply
    try {
      reply = await this.post('/api/v1/decide', body, headers, within + 5000, signal)
    } catch (e) {
      if (!(e instanceof MeshError) || signal?.aborted) throw e
      reply = await this.post('/api/v1/decide', body, headers, within + 5000, signal) // the key names the call, so that it is decided once
    }
    const { status, body: b } = reply
    const d: Decision = { verdict: 'DENY', reasonCode: b['reason_code'] ?? '', message: '', callId: b['call_id'] ?? '', sessionId: b['session_id'] ?? '', receiptId: b['receipt_id'] ?? '' }
    if (status === 200 && b['verdict'] === 'ALLOW' && b['intent_id']) {
      return { ...d, verdict: 'ALLOW', intentId: b['intent_id'], argsDigest: b['args_digest'], reportBy: b['report_by'], signed: b['decision'] }
    }
    if (status === 202 && d.callId) {
      const reason = d.reasonCode || 'APPROVAL_REQUIRED'
      return { ...d, verdict: 'ESCALATE', reasonCode: reason, message: `the call waits for approval as ${d.callId}: a person grants it with \`binnacle approvals grant ${d.callId} --reason WHY\`; then try again` }
    }
    const e = b['error'] ?? {}
    if (e.reason_code && e.receipt_id) {
      return { ...d, reasonCode: e.reason_code, callId: e.call_id ?? '', receiptId: e.receipt_id, message: `${String(e.message).includes(e.reason_code) ? '' : `denied by policy: ${e.reason_code}: `}${e.message} (receipt ${e.receipt_id})` }
    }
    throw refusal(status, b)
  }

  private async post(path: string, body: unknown, headers: Record<string, string>, within: number, signal?: AbortSignal): Promise<Reply> {
    const token = typeof this.o.token === 'function' ? await this.o.token() : this.o.token ?? process.env['BINNACLE_TOKEN']
    if (!token) throw new MeshError('there is no token: set the option token or BINNACLE_TOKEN', 'no_token', 0)
    const limit = AbortSignal.timeout(within)
    let response: Response
    let text: string
    try {
      response = await (this.o.fetch ?? fetch)(this.url + path, {
        method: 'POST', redirect: 'error', signal: signal ? AbortSignal.any([signal, limit]) : limit, body: JSON.stringify(body),
        headers: { 'Content-Type': 'application/json', 'X-Binnacle-Session': this.session, ...headers, Authorization: 'Bearer ' + token },
      })
      text = await response.text()
    } catch (e) {
      if (signal?.aborted) throw signal.reason
      throw new MeshError(`the mesh cannot be reached at ${this.url}; \`binnacle up\` runs one`, 'mesh_away', 0)
    }
    let doc: unknown
    try {
      doc = JSON.parse(text)
    } catch {
      doc = null
    }
    if (typeof doc !== 'object' || doc === null) throw new MeshError(`the response of ${this.url} is not that of a mesh (status ${response.status})`, 'mesh_away', response.status)
    return { status: response.status, body: doc as Record<string, any> }
  }
}

function refusal(status: number, body: Record<string, any>): MeshError {
  const e = body['error'] ?? {}
  return new MeshError(e.message ?? `the mesh responded with status ${status}`, e.code ?? 'unexpected_response', status)
}

/** Returns the outcome of a tool that threw. The error's text can hold what the tool read, so it is recorded by digest only. */
export function failure(e: unknown): Outcome {
  if (e instanceof Error && e.name === 'AbortError') return { status: 'cancelled', errorCode: 'aborted', errorMessage: 'the tool was aborted' }
  return { status: 'failed', errorCode: 'agent_tool_failed', errorMessage: `the tool threw ${e instanceof Error ? e.name.replace(/[^A-Za-z0-9_]/g, '_') : typeof e}` }
}

export function isStream(v: unknown): v is AsyncIterable<unknown> {
  return typeof v === 'object' && v !== null && Symbol.asyncIterator in v && !(v instanceof ReadableStream)
}

/** Returns a copy of an object with some of its members replaced; it has the same prototype. */
export function replaced<T extends object>(object: T, members: object): T {
  const copy = Object.create(Object.getPrototypeOf(object) as object, Object.getOwnPropertyDescriptors(object)) as T
  for (const [name, value] of Object.entries(members)) {
    Object.defineProperty(copy, name, { value, writable: true, enumerable: true, configurable: true })
  }
  return copy
}

/** Returns the JSON text of an output; an output that is no JSON value is represented by its type. */
function textOf(output: unknown): string {
  try {
    return JSON.stringify(output) ?? 'null'
  } catch {
    return JSON.stringify({ type: Object.prototype.toString.call(output) })
  }
}

function digestOf(hash: ReturnType<typeof createHash>): string {
  return 'sha256:' + hash.digest('hex')
}

/** Returns at most 1000 bytes of a text. */
function clip(text: string): string {
  const bytes = Buffer.from(text)
  return bytes.length <= 1000 ? text : bytes.subarray(0, 997).toString().replace(/\uFFFD$/, '')
}

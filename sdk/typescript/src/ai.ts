/** The Vercel AI SDK: tools and models whose calls are decided before they run. */
import { AISDKError, type LanguageModelMiddleware } from 'ai'
import { createHash } from 'node:crypto'

import { Denied, failure, type Decision, type Mesh } from './index.js'

/** A call that policy did not allow, as an error of the AI SDK. */
export class CallDeniedError extends AISDKError {
  constructor(readonly decision: Decision) {
    super({ name: 'AI_CallDeniedError', message: decision.message })
  }
}

async function asError<T>(promise: Promise<T>): Promise<T> {
  try {
    return await promise
  } catch (e) {
    throw e instanceof Denied ? new CallDeniedError(e.decision) : e
  }
}

/**
 * Returns tools whose execute runs only if the call is allowed. Otherwise it throws a
 * CallDeniedError, which the AI SDK hands to the model as `tool-error`. The outputs of an
 * async generator pass one by one. A tool without execute is unchanged.
 */
export function governed<T extends Record<string, any>>(mesh: Mesh, tools: T): T {
  return Object.fromEntries(Object.entries(tools).map(([name, tool]: [string, any]) => [name, tool.execute ? { ...tool, execute: execution(mesh, name, tool.execute) } : tool])) as T
}

function execution(mesh: Mesh, tool: string, execute: (...args: any[]) => any): (...args: any[]) => any {
  if (execute.constructor.name === 'AsyncGeneratorFunction') {
    return async function* (input: unknown, options: any) {
      try {
        yield* mesh.stream({ tool, input }, () => execute(input, options), options?.abortSignal)
      } catch (e) {
        throw e instanceof Denied ? new CallDeniedError(e.decision) : e
      }
    }
  }
  return async (input: unknown, options: any) => (await asError(mesh.run({ tool, input }, () => execute(input, options), options?.abortSignal))).output
}

/**
 * Returns a middleware for wrapLanguageModel: each request to the model is a call of the tool
 * `model:PROVIDER/MODEL`, whose input is the digest of the prompt and the names of the tools
 * that are offered. The parts of a stream pass unchanged.
 */
export function middleware(mesh: Mesh): LanguageModelMiddleware {
  const action = (model: { provider: string; modelId: string }, params: { prompt: unknown; tools?: { name: string }[] | undefined }) => ({
    tool: `model:${model.provider}/${model.modelId}`,
    input: { prompt_digest: 'sha256:' + createHash('sha256').update(JSON.stringify(params.prompt)).digest('hex'), tools: (params.tools ?? []).map((t) => t.name) },
  })
  return {
    specificationVersion: 'v4',
    wrapGenerate: async ({ doGenerate, params, model }) => {
      const { output } = await asError(mesh.run(action(model, params), () => Promise.resolve(doGenerate()), params.abortSignal))
      return output
    },
    wrapStream: async ({ doStream, params, model }) => {
      const call = action(model, params)
      const decision = await asError(mesh.permit(call, params.abortSignal))
      const hash = createHash('sha256')
      let bytes = 0
      try {
        const result = await doStream()
        const stream = passing(result.stream, (part) => {
          const line = JSON.stringify(part) + '\n'
          hash.update(line)
          bytes += Buffer.byteLength(line)
        }, (e, left) => mesh.close(call, decision, left ? { status: 'cancelled', errorCode: 'stream_left', errorMessage: 'the reader left the stream before its end' } : e === undefined ? { status: 'succeeded', output: { bytes, output_digest: 'sha256:' + hash.digest('hex') } } : failure(e)))
        return { ...result, stream }
      } catch (e) {
        await mesh.close(call, decision, failure(e))
        throw e
      }
    },
  }
}

/** Returns a stream with the same parts. Before it ends, end is called once: with the error if it failed, or with left if its reader cancelled it. */
function passing<T>(from: ReadableStream<T>, see: (part: T) => void, end: (error: unknown, left: boolean) => Promise<unknown>): ReadableStream<T> {
  const reader = from.getReader()
  return new ReadableStream<T>({
    async pull(to) {
      try {
        const { done, value } = await reader.read()
        if (!done) {
          see(value)
          to.enqueue(value)
          return
        }
      } catch (e) {
        await end(e, false)
        to.error(e)
        return
      }
      await end(undefined, false)
      to.close()
    },
    async cancel(reason) {
      await reader.cancel(reason)
      await end(undefined, true)
    },
  }, { highWaterMark: 0 })
}

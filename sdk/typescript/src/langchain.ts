/** LangChain.js and LangGraph.js: callbacks that decide the calls of tools before they run. */
import { BaseCallbackHandler } from '@langchain/core/callbacks/base'
import { LangChainError } from '@langchain/core/errors'
import type { Serialized } from '@langchain/core/load/serializable'

import { Denied, failure, type Action, type Decision, type Mesh } from './index.js'

/** A call that policy did not allow, as an error of LangChain. */
export class CallDeniedError extends LangChainError {
  override readonly name = 'CallDeniedError'
  constructor(readonly decision: Decision) {
    super(decision.message)
  }
}

/**
 * A callback handler, for `{ callbacks: [new Governor(mesh)] }` of a tool, chain, agent or
 * graph: every tool that runs below it is decided first. The call of a tool that is not
 * allowed fails with a CallDeniedError, which LangGraph's ToolNode returns to the model as a
 * message of status `error`. Models and streams are not affected.
 */
export class Governor extends BaseCallbackHandler {
  name = 'binnacle'
  override raiseError = true
  override awaitHandlers = true
  private readonly running = new Map<string, { action: Action; decision: Decision }>()

  constructor(private readonly mesh: Mesh) {
    super()
  }

  override async handleToolStart(tool: Serialized, input: string, runId: string, _parent?: string, _tags?: string[], _metadata?: Record<string, unknown>, runName?: string): Promise<void> {
    const action = { tool: runName ?? tool.name ?? tool.id.at(-1) ?? 'tool', input: parsed(input) }
    try {
      this.running.set(runId, { action, decision: await this.mesh.permit(action) })
    } catch (e) {
      throw e instanceof Denied ? new CallDeniedError(e.decision) : e
    }
  }

  override async handleToolEnd(output: any, runId: string): Promise<void> {
    const r = this.take(runId)
    if (!r) return
    const failed = output?.status === 'error' ? { isError: true, content: output.content } : output?.content ?? output
    await this.mesh.close(r.action, r.decision, this.mesh.success(r.action, failed))
  }

  override async handleToolError(error: unknown, runId: string): Promise<void> {
    const r = this.take(runId)
    if (r) await this.mesh.close(r.action, r.decision, failure(error))
  }

  private take(runId: string) {
    const r = this.running.get(runId)
    this.running.delete(runId)
    return r
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

/** Mastra: tools whose calls are decided before they run. */
import { ErrorCategory, ErrorDomain, MastraError } from '@mastra/core/error'

import { Denied, replaced, type Decision, type Mesh } from './index.js'

/** A call that policy did not allow, as an error of Mastra. */
export class CallDeniedError extends MastraError {
  constructor(readonly decision: Decision) {
    super({ id: 'BINNACLE_CALL_DENIED', domain: ErrorDomain.TOOL, category: ErrorCategory.USER, text: decision.message, details: { callId: decision.callId, reasonCode: decision.reasonCode, receiptId: decision.receiptId } })
  }
}

/** Returns a tool whose execute runs only if its call is allowed, and otherwise throws a CallDeniedError. */
export function governed<T extends { id: string; execute?: (...args: any[]) => any }>(mesh: Mesh, tool: T): T {
  const execute = tool.execute
  if (!execute) return tool
  return replaced(tool, {
    execute: async (input: unknown, context: any) => {
      try {
        return (await mesh.run({ tool: tool.id, input }, () => execute.call(tool, input, context), context?.abortSignal)).output
      } catch (e) {
        throw e instanceof Denied ? new CallDeniedError(e.decision) : e
      }
    },
  })
}

/** The OpenAI Agents SDK: tools whose calls are decided before they run, and guardrails. */
import { ToolGuardrailFunctionOutputFactory, defineToolInputGuardrail, defineToolOutputGuardrail } from '@openai/agents-core'
import type { ToolInputGuardrailDefinition, ToolOutputGuardrailDefinition } from '@openai/agents-core'

import { Denied, type Action, type Decision, type Mesh } from './index.js'

/**
 * Returns the options of a tool, for `tool()`, such that execute runs only if its call is
 * allowed. Otherwise execute throws Denied, as it would throw an error of its own: the model
 * receives the text of errorFunction, which is the reason if the option is absent, and with
 * errorFunction null the run ends with a ToolCallError. The input is decided as the tool's
 * parameters parsed it.
 */
export function governed<T extends { name?: string; execute: (...args: any[]) => any }>(mesh: Mesh, options: T): T {
  const execute = options.execute
  const name = options.name ?? (execute.name || 'tool')
  return { errorFunction: (_: unknown, e: unknown) => e instanceof Denied ? e.message : 'An error occurred while running the tool. Please try again.', ...options, name, execute: async (...args: any[]) => (await mesh.run({ tool: name, input: args[0] }, () => execute(...args), args[2]?.signal)).output }
}

/**
 * Returns guardrails for one tool or several, to spread into the options of `tool()`. The
 * input guardrail decides the arguments as the model wrote them. If they are not allowed,
 * the model receives the reason, or, with deny 'throw', the run ends with
 * an error for a ToolInputGuardrailTripwireTriggered. The output guardrail records the outcome; a text that
 * errorFunction made of an error is an output like any other.
 */
export function guardrails(mesh: Mesh, options: { deny?: 'reject' | 'throw' } = {}): { inputGuardrails: ToolInputGuardrailDefinition<any>[]; outputGuardrails: ToolOutputGuardrailDefinition<any>[] } {
  const permitted = new WeakMap<object, { action: Action; decision: Decision }>()
  return {
    inputGuardrails: [defineToolInputGuardrail<any>({
      name: 'binnacle',
      run: async ({ toolCall }) => {
        const action = { tool: toolCall.name, input: parsed(toolCall.arguments) }
        try {
          const decision = await mesh.permit(action)
          permitted.set(toolCall, { action, decision })
          return ToolGuardrailFunctionOutputFactory.allow(decision)
        } catch (e) {
          if (!(e instanceof Denied)) throw e
          return options.deny === 'throw' ? ToolGuardrailFunctionOutputFactory.throwException(e.decision) : ToolGuardrailFunctionOutputFactory.rejectContent(e.message, e.decision)
        }
      },
    })],
    outputGuardrails: [defineToolOutputGuardrail<any>({
      name: 'binnacle',
      run: async ({ toolCall, output }) => {
        const p = permitted.get(toolCall)
        return ToolGuardrailFunctionOutputFactory.allow(p && await mesh.close(p.action, p.decision, mesh.success(p.action, output)))
      },
    })],
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

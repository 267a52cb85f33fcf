/** Clients of MCP servers: each tools/call is decided before it is sent. */
import { ErrorCode, McpError } from '@modelcontextprotocol/sdk/types.js'

import { Denied, type Decision, type Mesh } from './index.js'

/** A call that policy did not allow, as an error of the MCP SDK. */
export class CallDeniedError extends McpError {
  constructor(readonly decision: Decision) {
    super(ErrorCode.InvalidRequest, decision.message, { callId: decision.callId, reasonCode: decision.reasonCode, receiptId: decision.receiptId })
  }
}

interface Caller {
  callTool(params: any, ...rest: any[]): Promise<any>
  getServerVersion?(): { name: string } | undefined
}

/**
 * Replaces callTool of a client by one that sends only allowed calls, and throws a
 * CallDeniedError for others. It returns the client. The calls have the kind
 * `client.mcp.SERVER.TOOL`; the server is named as it names itself, or by server.
 */
export function governed<T extends Caller>(mesh: Mesh, client: T, options: { server?: string } = {}): T {
  const call = client.callTool.bind(client) as Caller['callTool']
  client.callTool = async (params: any, ...rest: any[]) => {
    const server = options.server ?? client.getServerVersion?.()?.name ?? 'mcp'
    const input: unknown = params.arguments ?? {}
    try {
      return (await mesh.run({ kind: `client.mcp.${token(server)}.${token(params.name)}`, tool: params.name, input, args: { input, server, tool: params.name } }, () => call(params, ...rest), rest[1]?.signal)).output
    } catch (e) {
      throw e instanceof Denied ? new CallDeniedError(e.decision) : e
    }
  }
  return client
}

/** Returns a name as a part of a kind. */
function token(name: string): string {
  return name === '' ? '_' : name.replace(/[^A-Za-z0-9_-]/gu, '_')
}

// An OpenID Connect provider for tests, by the package oidc-provider. Persons log in with any
// password; PUT /groups/NAME with a JSON list sets the groups of one.
// With RESOURCE, the URL of an MCP server, it registers clients and issues access tokens in the
// form of JWTs for that resource, which live ten seconds, with refresh tokens. GET /issued returns
// the number of grants by type and all that is secret, and DELETE /grants ends the grants.
// Usage: node oidc.mjs PORT SECRET
import { Provider, errors } from 'oidc-provider';

const [port, secret] = process.argv.slice(2);
const groups = new Map();
const resource = process.env.RESOURCE;
const issued = { counts: {}, secrets: [] };
const grants = new Set();
const native = { application_type: 'native', redirect_uris: ['http://127.0.0.1/callback'], response_types: ['code'], grant_types: ['authorization_code', 'refresh_token'] };
const protects = resource && {
  scopes: ['openid', 'offline_access'],
  features: {
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, indicator) => {
        if (indicator !== resource) throw new errors.InvalidTarget();
        return { scope: 'notes:read', audience: resource, accessTokenFormat: 'jwt', accessTokenTTL: 10 };
      },
    },
  },
};
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: 'binnacle', client_secret: secret, application_type: 'native', // any port of the loopback address
    redirect_uris: ['http://127.0.0.1/auth/callback'], response_types: ['code'], grant_types: ['authorization_code'],
  }, { ...native, client_id: 'registered', client_secret: secret }],
  claims: { openid: ['sub', 'groups'] },
  conformIdTokenClaims: process.env.CLAIMS !== 'id_token', // true: the groups are in the UserInfo response alone
  pkce: { required: () => true },
  findAccount: (_, sub) => ({ accountId: sub, claims: async () => ({ sub, groups: groups.get(sub) }) }),
  cookies: { keys: ['key of the test'] },
  ...protects,
});
provider.on('grant.success', (ctx) => {
  const { grant_type: type, code, code_verifier: verifier } = ctx.oidc.params;
  issued.counts[type] = (issued.counts[type] ?? 0) + 1;
  issued.secrets.push(...[code, verifier, ctx.body.access_token, ctx.body.refresh_token].filter(Boolean));
  grants.add(ctx.oidc.entities.Grant?.jti);
});
provider.use(async (ctx, next) => {
  if (ctx.path === '/issued') {
    ctx.body = issued;
  } else if (ctx.method === 'DELETE' && ctx.path === '/grants') {
    for (const id of grants) await (await provider.Grant.find(id))?.destroy();
    ctx.status = 204;
  } else {
    await next();
  }
});
provider.use(async (ctx, next) => {
  if (ctx.method !== 'PUT' || !ctx.path.startsWith('/groups/')) return next();
  let body = '';
  for await (const part of ctx.req) body += part;
  groups.set(ctx.path.slice('/groups/'.length), JSON.parse(body));
  ctx.status = 204;
});
provider.on('server_error', (_, err) => console.error(err));
provider.listen(Number(port), '127.0.0.1', () => console.log('ready'));

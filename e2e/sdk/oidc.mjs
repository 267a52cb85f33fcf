// An OpenID Connect provider for tests, by the package oidc-provider. Persons log in with any
// password; PUT /groups/NAME with a JSON list sets the groups of one.
// Usage: node oidc.mjs PORT SECRET
import { Provider } from 'oidc-provider';

const [port, secret] = process.argv.slice(2);
const groups = new Map();
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: 'binnacle', client_secret: secret, application_type: 'native', // any port of the loopback address
    redirect_uris: ['http://127.0.0.1/auth/callback'], response_types: ['code'], grant_types: ['authorization_code'],
  }],
  claims: { openid: ['sub', 'groups'] },
  conformIdTokenClaims: process.env.CLAIMS !== 'id_token', // true: the groups are in the UserInfo response alone
  pkce: { required: () => true },
  findAccount: (_, sub) => ({ accountId: sub, claims: async () => ({ sub, groups: groups.get(sub) }) }),
  cookies: { keys: ['key of the test'] },
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

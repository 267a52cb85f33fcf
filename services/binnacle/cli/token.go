package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// tokenCmd mints bearer tokens, where the mesh's keys are, and revokes them.
func tokenCmd(ctx context.Context, c *env) error {
	actor := c.fs.String("actor", "", "who the token speaks for")
	client := c.fs.String("client", "-", "the client it is for")
	ttl := c.fs.Duration("ttl", 24*time.Hour, "how long it is valid")
	var scopes list
	c.fs.Var(&scopes, "scope", fmt.Sprintf("scope, may be repeated; one of %v", token.All))
	principal := c.fs.String("principal", "", "for revoke: all that this principal's credentials gave until now")
	reason := c.fs.String("reason", "", "why, for revoke")
	const usage = "create --actor NAME --scope SCOPE … | admin | revoke ID|TOKEN --reason WHY | revoke --principal WHO --reason WHY"
	pos, err := c.parse(1, 2, usage)
	if err != nil {
		return err
	}
	switch {
	case pos[0] == "create" && len(pos) == 1:
	case pos[0] == "admin" && len(pos) == 1:
		return adminToken(c)
	case pos[0] == "revoke" && (len(pos) == 2) != (*principal != ""):
		args := map[string]string{"reason": *reason}
		if args["principal"] = *principal; *principal == "" {
			delete(args, "principal")
			args["id"] = token.ID(pos[1])
		}
		return c.say(c.governed(ctx, "policy.revoke_token", args))
	default:
		return fail(exitUsage, "usage: binnacle token %s", usage)
	}
	if *actor == "" || len(scopes) == 0 {
		return fail(exitUsage, "token create wants --actor and at least one --scope")
	}
	seed, err := keyring.ReadSeed(filepath.Join(*c.data, "keys", "token.seed"))
	if err != nil {
		return fmt.Errorf("tokens are minted where the mesh's keys are: %w", err)
	}
	t, err := token.Mint(seed, "default", *actor, *client, scopes, time.Now(), *ttl)
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	return c.print(map[string]string{"token": t, "id": token.ID(t)}, func() { fmt.Fprintln(c.out, t) })
}

// adminToken prints the administrator's token, a new one if the old one nears
// its end.
func adminToken(c *env) error {
	ring, err := keyring.Open(filepath.Join(*c.data, "keys"))
	if err != nil {
		return err
	}
	t, err := mesh.AdminToken(*c.data, ring, "default")
	if err != nil {
		return err
	}
	return c.print(map[string]string{"token": t}, func() { fmt.Fprintln(c.out, t) })
}

// sessionCmd lets other principals make calls in a session of the caller's.
func sessionCmd(ctx context.Context, c *env) error {
	ttl := c.fs.Duration("ttl", 24*time.Hour, "how long, for grant")
	const usage = "grant SESSION WHO [--ttl D] | revoke SESSION WHO | list"
	verb, rest, err := c.verb(usage)
	if err != nil {
		return err
	}
	switch {
	case verb == "list" && len(rest) == 0:
		return c.listIdentities(ctx, "session", "")
	case verb == "grant" && len(rest) == 2:
		return c.say(c.governed(ctx, "policy.grant_session", map[string]any{"session": rest[0], "principal": rest[1], "ttl_ms": ttl.Milliseconds()}))
	case verb == "revoke" && len(rest) == 2:
		return c.say(c.governed(ctx, "policy.revoke_session", map[string]string{"session": rest[0], "principal": rest[1]}))
	}
	return fail(exitUsage, "usage: binnacle session %s", usage)
}

// consent agrees to a virtual key that calls as the caller, and takes that back.
func (c *env) consent(ctx context.Context, verb, id, maker string, scopes []string, ttl time.Duration) error {
	path := "/api/v1/keys/" + url.PathEscape(id) + "/consent"
	method, body := http.MethodDelete, any(nil)
	if verb == "consent" {
		if maker == "" || len(scopes) == 0 {
			return fail(exitUsage, "key consent wants --maker and at least one --scope")
		}
		if ttl == 0 {
			ttl = 24 * time.Hour
		}
		method, body = http.MethodPost, gateway.ConsentRequest{Maker: maker, Scopes: scopes, TTLMS: ttl.Milliseconds()}
	}
	resp, err := c.request(ctx, method, path, body, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return c.sayCall(resp.Body)
}

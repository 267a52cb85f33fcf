package vaultbroker

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/lru"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/secrettype"
)

// Kinds of the calls that manage secrets.
const (
	kindStore        = "vault.store"
	kindList         = "vault.list"
	kindShow         = "vault.show"
	kindDelete       = "vault.delete"
	kindRestore      = "vault.restore"
	kindRotateSecret = "vault.rotate"
	kindErase        = "vault.erase"
	kindAccess       = "vault.access"
	kindAuthorize    = "vault.authorize"
)

const (
	// nameProperty and storeProperties are parts of the schemas of tools.
	nameProperty    = `"name":{"maxLength":64,"minLength":1,"type":"string"}`
	storeProperties = `"expires":{"description":"time (RFC 3339) from which on the value is no longer released","type":"string"},` + nameProperty + `,"overlap_seconds":{"description":"for how long the value before it is released too, under NAME.previous","maximum":31536000,"minimum":0,"type":"integer"}`
	versionMembers  = `"created":{"type":"string"},"expires":{"type":"string"},"fingerprint":{"type":"string"},"overlap":{"description":"until when the version before is released too","type":"string"},"type":{"type":"string"},"version":{"type":"integer"}`
	versionSchema   = `{"properties":{` + versionMembers + `},"required":["fingerprint","version"],"type":"object"}`
	storedOutput    = `{"properties":{"name":{"type":"string"},` + versionMembers + `},"required":["fingerprint","name","version"],"type":"object"}`
	entryMembers    = `"last_used":{"type":"string"},"name":{"type":"string"},"state":{"enum":["active","deleted","erased","expired"],"type":"string"}`
	namedInput      = `{"additionalProperties":false,"properties":{` + nameProperty + `},"required":["name"],"type":"object"}`
	namedOutput     = `{"properties":{"name":{"type":"string"}},"required":["name"],"type":"object"}`
)

// secretTools are the tools of the calls that manage secrets, beside putTool. The document of
// putTool does not change, because a ledger on which it was approved would deny another one.
var secretTools = []contract.Tool{
	tool(kindStore, "E1", "Stores a version of a secret with its type, and the times until which it and the version before it are valid. The value travels sealed beside the call, never in its arguments.",
		`{"additionalProperties":false,"properties":{`+storeProperties+`,"type":{"enum":`+list(secrettype.Names())+`,"type":"string"}},"required":["name"],"type":"object"}`, storedOutput),
	tool(kindRotateSecret, "E1", "Replaces a secret by a new random value that no person sees, or creates it.",
		`{"additionalProperties":false,"properties":{"bytes":{"maximum":1024,"minimum":16,"type":"integer"},`+storeProperties+`},"required":["name"],"type":"object"}`, storedOutput),
	tool(kindList, "E0", "Lists secrets without their values: type, version, validity and last use.",
		`{"additionalProperties":false,"properties":{"after":{"type":"string"},"limit":{"maximum":1000,"minimum":1,"type":"integer"}},"type":"object"}`,
		`{"properties":{"more":{"type":"boolean"},"secrets":{"items":{"properties":{`+entryMembers+`,"newest":`+versionSchema+`},"required":["name","state"],"type":"object"},"type":"array"}},"required":["more","secrets"],"type":"object"}`),
	tool(kindShow, "E0", "Lists the stored versions of a secret without their values.", namedInput, `{"properties":{`+entryMembers+`,"versions":{"items":`+versionSchema+`,"type":"array"}},"required":["name","state","versions"],"type":"object"}`),
	tool(kindDelete, "E1", "Makes a secret unreadable until it is restored or stored again.", namedInput, namedOutput),
	tool(kindRestore, "E1", "Makes a deleted secret readable again.", namedInput, namedOutput),
	tool(kindAccess, "E0", "Lists the access list of secrets: who may use which, for what, until when, and how often it was used.", `{"additionalProperties":false,"properties":{},"type":"object"}`,
		`{"properties":{"default":{"enum":["deny","intent"],"type":"string"},"entries":{"items":{"properties":{"approval":{"type":"boolean"},"client":{"type":"string"},"expires":{"type":"string"},"host":{"type":"string"},"id":{"type":"string"},"max_uses":{"type":"integer"},"methods":{"items":{"type":"string"},"type":"array"},"paths":{"items":{"type":"string"},"type":"array"},"secret":{"type":"string"},"subject":{"type":"string"},"tool":{"type":"string"},"uses":{"type":"integer"}},"required":["client","id","secret","subject","tool"],"type":"object"},"type":"array"},"listed":{"items":{"type":"string"},"type":"array"}},"required":["default","entries","listed"],"type":"object"}`),
	tool(kindAuthorize, "E1", "Begins the login of a person at an authorization server (OAuth 2.0): returns the URL to open. The login ends with a call of vault.store, whose value has the authorization code, and which stores the client with its refresh token.",
		`{"additionalProperties":false,"properties":{"client_id":{"description":"of a registered client; by default one is registered (RFC 7591)","maxLength":2048,"type":"string"},"issuer":{"description":"of the authorization server; by default that of the newest version","maxLength":2048,"type":"string"},`+nameProperty+`,"redirect_uri":{"description":"http URL with a loopback address","maxLength":256,"type":"string"},"resource":{"description":"URI of the service for which tokens are requested (RFC 8707); by default that of the newest version","maxLength":2048,"type":"string"},"scopes":{"items":{"maxLength":256,"type":"string"},"maxItems":64,"type":"array"}},"required":["name","redirect_uri"],"type":"object"}`,
		`{"properties":{"authorization":{"description":"id of the login","type":"string"},"client_id":{"type":"string"},"issuer":{"type":"string"},"url":{"description":"to open, with a parameter state added","type":"string"}},"required":["authorization","client_id","issuer","url"],"type":"object"}`),
	tool(kindErase, "E4", "Destroys all versions of a secret for ever. Its name cannot be used again.", namedInput, namedOutput),
}

// tool returns the document of a tool of the vault-broker. Calls of all tools but those that
// store a version or begin a login may run again: a repetition changes nothing.
func tool(kind, class, about, in, out string) contract.Tool {
	return contract.Tool{Description: about, Class: class, Executor: services.VaultBroker, Kind: kind, Tool: kind, Version: "v1",
		Rerunnable: !slices.Contains([]string{kindStore, kindRotateSecret, kindAuthorize}, kind), InputSchema: canonical(in), OutputSchema: canonical(out)}
}

// canonical returns the canonical form of a schema in this file.
func canonical(schema string) contract.Raw {
	b, err := canon.Transform(nil, []byte(schema))
	if err != nil {
		panic(err)
	}
	return b
}

// list returns a JSON array of strings.
func list(names []string) string { return `["` + strings.Join(names, `","`) + `"]` }

// rerunnable reports whether a claimed call of a kind may run again.
func rerunnable(kind string) bool {
	return slices.ContainsFunc(tools(), func(t contract.Tool) bool { return t.Kind == kind && t.Rerunnable })
}

// keeper executes the calls that manage secrets, and selects the versions that are released.
type keeper struct {
	env     *run.Env
	secrets backend.Backend
	tokens  *tokens // of secrets of type oauth
	kek     []byte
	used    lru.Cache[time.Time] // when the last use of a secret was recorded, by tenant and name
}

// newKeeper returns a keeper of the secrets in the store of tokens.
func newKeeper(env *run.Env, t *tokens, kek []byte) *keeper {
	return &keeper{env: env, secrets: t.secrets, tokens: t, kek: kek, used: lru.Cache[time.Time]{Max: maxUsed}}
}

// arguments are the arguments of all calls about secrets.
type arguments struct {
	After   string `json:"after"`
	Bytes   int    `json:"bytes"`
	Expires string `json:"expires"`
	Limit   int    `json:"limit"`
	Name    string `json:"name"`
	Overlap int64  `json:"overlap_seconds"`
	Type    string `json:"type"`

	expires time.Time // parsed Expires
}

// parse returns the arguments of a call about one secret, or the result of a call with
// invalid ones.
func (k *keeper) parse(raw []byte) (a arguments, bad *execute.Result) {
	fail := func(format string, args ...any) (arguments, *execute.Result) {
		r := execute.Fail(contract.CodeInvalidInput, format, args...)
		return a, &r
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return fail("%v", err)
	}
	if !secret.ValidName(a.Name) {
		return fail("name: a secret's name is 1 to 64 of [A-Za-z0-9._-], not beginning with %s", secret.ReservedNames)
	}
	if a.Expires == "" {
		return a, nil
	}
	t, err := time.Parse(time.RFC3339, a.Expires)
	if err != nil {
		return fail("expires: %q is not a time of the form 2006-01-02T15:04:05Z", a.Expires)
	}
	if a.expires = t.UTC().Truncate(time.Second); k.expired(a.expires) {
		return fail("expires: %s has passed", a.Expires)
	}
	return a, nil
}

// expired reports whether a time, which is zero for none, has come.
func (k *keeper) expired(end time.Time) bool {
	return !end.IsZero() && !k.env.Emit.Now().Before(end)
}

// store stores the next version of a secret and returns the result of the call. A version
// without a type gets that of the version before it, unless that version is deleted.
func (k *keeper) store(ctx context.Context, tenant string, a arguments, value []byte) execute.Result {
	before, err := k.read(ctx, tenant, a.Name)
	if err != nil && !gone(err) {
		return k.failed(tenant, a.Name, err)
	}
	about := backend.About{Type: a.Type, Expires: a.expires}
	switch {
	case before.Type == "":
	case a.Type == "":
		about.Type = before.Type
	case a.Type != before.Type:
		return execute.Fail(contract.CodeConflict, "type: the secret %s has the type %s; store it under another name", a.Name, before.Type)
	}
	if res := k.checkType(&about, value); res != nil {
		return *res
	}
	if before.Version > 0 && a.Overlap > 0 {
		about.Overlap = k.env.Emit.Now().Add(time.Duration(a.Overlap) * time.Second).UTC().Truncate(time.Second)
	}
	version, failed := k.putValue(ctx, tenant, a.Name, value, about)
	if failed != nil {
		return *failed
	}
	fp, err := backend.Fingerprint(k.kek, tenant, value)
	if err != nil {
		return execute.Fail(contract.CodeInternal, "the fingerprint could not be derived")
	}
	stored := backend.Value{About: about, Version: version, Fingerprint: fp}
	return execute.Result{EffectType: "secret.stored", Output: describe(a.Name, &stored)}
}

// describe returns a JSON object with a description of a version of a secret; name may be "".
func describe(name string, v *backend.Value) []byte {
	c := canon.Object(nil)
	if !v.Created.IsZero() {
		c.Str("created", v.Created.UTC().Format(time.RFC3339))
	}
	if !v.Expires.IsZero() {
		c.Str("expires", v.Expires.Format(time.RFC3339))
	}
	c.Str("fingerprint", v.Fingerprint)
	if name != "" {
		c.Str("name", name)
	}
	if !v.Overlap.IsZero() {
		c.Str("overlap", v.Overlap.Format(time.RFC3339))
	}
	if v.Type != "" {
		c.Str("type", v.Type)
	}
	c.Int("version", int64(v.Version))
	return c.End()
}

// checkType returns the result of a call whose value does not have the form of its type or
// contains an expired certificate, and otherwise nil. It sets about.Expires to the end of the
// certificate in the value, unless about.Expires is an earlier time.
func (k *keeper) checkType(about *backend.About, value []byte) *execute.Result {
	if about.Type == "" {
		return nil
	}
	end, err := secrettype.Check(about.Type, value)
	if err != nil {
		r := execute.Fail(contract.CodeInvalidInput, "%v", err)
		return &r
	}
	if k.expired(end) {
		r := execute.Fail(contract.CodeInvalidInput, "value: the certificate has expired at %s", end.Format(time.RFC3339))
		return &r
	}
	if !end.IsZero() && (about.Expires.IsZero() || end.Before(about.Expires)) {
		about.Expires = end
	}
	return nil
}

// gone reports whether err means that a secret does not exist or cannot be read any more.
func gone(err error) bool {
	return errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrDeleted) || errors.Is(err, backend.ErrErased)
}

// patiently calls op again while its error is retryable, until patience has passed.
func (k *keeper) patiently(ctx context.Context, op func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := op(ctx)
		if !backend.Retryable(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// read returns the newest version of a secret without its bytes.
func (k *keeper) read(ctx context.Context, tenant, name string) (v backend.Value, err error) {
	err = k.patiently(ctx, func(ctx context.Context) (err error) {
		v, err = k.secrets.Get(ctx, tenant, name, 0)
		clear(v.Bytes)
		v.Bytes = nil
		return err
	})
	return v, err
}

// failed returns the result of a call whose request to the store failed with err.
func (k *keeper) failed(tenant, name string, err error) execute.Result {
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return execute.Fail(contract.CodeNotFound, "name: secret %s not found", name)
	case errors.Is(err, backend.ErrErased):
		return execute.Fail(contract.CodeConflict, "name: the secret %s was erased, and its name cannot be used again", name)
	}
	k.env.Log.Error("a call about a secret failed", "tenant", tenant, "name", name, "err", err)
	res := execute.Fail(code(err), "the store could not be used: %s", cause(err))
	if errors.Is(err, backend.ErrUnavailable) {
		res.Status = contract.Unknown
	}
	return res
}

// manage executes a call of secretTools that has no value from the gateway.
func (k *keeper) manage(ctx context.Context, w *execute.Work) execute.Result {
	tenant := w.Event.Tenant
	switch w.Call.Kind {
	case kindList:
		return k.list(ctx, tenant, w.Args)
	case kindAccess:
		return k.access(ctx, tenant)
	case kindAuthorize:
		return k.tokens.authorize(ctx, w)
	}
	a, bad := k.parse(w.Args)
	if bad != nil {
		return *bad
	}
	var change func(ctx context.Context, owner, name string) error
	var effect string
	switch w.Call.Kind {
	case kindShow:
		return k.show(ctx, tenant, a.Name)
	case kindRotateSecret:
		return k.rotate(ctx, tenant, a)
	case kindDelete:
		change, effect = k.secrets.Delete, "secret.deleted"
	case kindRestore:
		change, effect = k.secrets.Restore, "secret.restored"
	case kindErase:
		change, effect = k.erase, "secret.erased"
	default:
		return execute.Fail(contract.CodeInternal, "kind %s has no handler", w.Call.Kind)
	}
	if err := k.patiently(ctx, func(ctx context.Context) error { return change(ctx, tenant, a.Name) }); err != nil {
		return k.failed(tenant, a.Name, err)
	}
	c := canon.Object(nil)
	c.Str("name", a.Name)
	return execute.Result{EffectType: effect, Output: c.End()}
}

// erase destroys a secret, and then the access tokens that were obtained with it.
func (k *keeper) erase(ctx context.Context, tenant, name string) error {
	if err := k.secrets.Erase(ctx, tenant, name); err != nil {
		return err
	}
	return k.tokens.erase(ctx, tenant, name)
}

// rotate stores a.Bytes random bytes, or 32 if a.Bytes is 0, in unpadded base64url (RFC 4648,
// section 5) as the next version of a secret. The call fails if the secret has a type other
// than api_key and file.
func (k *keeper) rotate(ctx context.Context, tenant string, a arguments) execute.Result {
	before, err := k.read(ctx, tenant, a.Name)
	if err != nil && !gone(err) {
		return k.failed(tenant, a.Name, err)
	}
	if !slices.Contains([]string{"", secrettype.APIKey, secrettype.File}, before.Type) {
		return execute.Fail(contract.CodeInvalidInput, "name: the secret %s has the type %s, for which no random value can be made; store its next value", a.Name, before.Type)
	}
	raw := make([]byte, cmp.Or(a.Bytes, 32))
	defer clear(raw)
	rand.Read(raw)
	value := make([]byte, base64.RawURLEncoding.EncodedLen(len(raw)))
	defer clear(value)
	base64.RawURLEncoding.Encode(value, raw)
	return k.store(ctx, tenant, a, value)
}

// States of a secret.
const (
	stateActive  = "active"
	stateExpired = "expired"
	stateDeleted = "deleted" // can be restored
	stateErased  = "erased"
)

// state returns the state of a secret whose newest version is v, or could not be read because
// of err, and reports whether it has one.
func (k *keeper) state(v *backend.Value, err error) (state string, ok bool) {
	switch {
	case errors.Is(err, backend.ErrDeleted):
		return stateDeleted, true
	case errors.Is(err, backend.ErrErased):
		return stateErased, true
	case err != nil:
		return "", false
	case k.expired(v.Expires):
		return stateExpired, true
	}
	return stateActive, true
}

// defaultList is the number of secrets in a list if the arguments name none.
const defaultList = 100

// list executes vault.list.
func (k *keeper) list(ctx context.Context, tenant string, raw []byte) execute.Result {
	var a arguments
	if err := json.Unmarshal(raw, &a); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	var names []string
	err := k.patiently(ctx, func(ctx context.Context) (err error) {
		names, err = k.secrets.Names(ctx, tenant)
		return err
	})
	if err != nil {
		return k.failed(tenant, "", err)
	}
	from, _ := slices.BinarySearch(names, a.After)
	if from < len(names) && names[from] == a.After {
		from++
	}
	names = names[from:]
	limit := cmp.Or(a.Limit, defaultList)
	more := len(names) > limit
	names = names[:min(limit, len(names))]
	docs := make([]json.RawMessage, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, name := range names {
		g.Go(func() (err error) {
			if docs[i], err = k.listed(ctx, tenant, name); errors.Is(err, backend.ErrNotFound) {
				// It was removed meanwhile, or an administrator of the store wrote what the broker cannot read.
				k.env.Log.Warn("a secret is not listed", "tenant", tenant, "name", name, "err", err)
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return k.failed(tenant, "", err)
	}
	docs = slices.DeleteFunc(docs, func(d json.RawMessage) bool { return d == nil })
	return execute.Result{EffectType: "secret.listed", Output: document(map[string]any{"more": more, "secrets": docs})}
}

// document returns the JSON of a value that can be encoded.
func document(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// entry describes a secret in the output of vault.list and vault.show.
type entry struct {
	LastUsed string            `json:"last_used,omitempty"`
	Name     string            `json:"name"`
	State    string            `json:"state"`
	Newest   json.RawMessage   `json:"newest,omitempty"`
	Versions []json.RawMessage `json:"versions,omitzero"`
}

// about returns the name, state and last use of a secret, and its newest version without its
// bytes.
func (k *keeper) about(ctx context.Context, tenant, name string) (d entry, v backend.Value, err error) {
	v, err = k.read(ctx, tenant, name)
	state, ok := k.state(&v, err)
	if !ok {
		return d, v, err
	}
	d = entry{Name: name, State: state}
	en, err := k.env.Emit.Log.Last(ctx, bus.Filter{Tenant: tenant, Service: services.VaultBroker, Event: events.SecretUsedName, Key: useKey(name)}.String())
	if errors.Is(err, eventlog.ErrNotFound) {
		return d, v, nil
	}
	if err == nil {
		var e *contract.Event
		if e, err = eventlog.Open(en, eventlog.Every); err == nil {
			d.LastUsed = e.Time
		}
	}
	return d, v, err
}

// listed returns the document of a secret in a list.
func (k *keeper) listed(ctx context.Context, tenant, name string) (json.RawMessage, error) {
	d, v, err := k.about(ctx, tenant, name)
	if err != nil {
		return nil, err
	}
	if v.Version > 0 {
		d.Newest = describe("", &v)
	}
	return document(d), nil
}

// show executes vault.show. It lists the stored versions, the newest first, and none of a
// deleted or erased secret.
func (k *keeper) show(ctx context.Context, tenant, name string) execute.Result {
	d, v, err := k.about(ctx, tenant, name)
	if err != nil {
		return k.failed(tenant, name, err)
	}
	d.Versions = []json.RawMessage{}
	for n := v.Version; n > 0; n-- {
		err := k.patiently(ctx, func(ctx context.Context) (err error) {
			v, err = k.secrets.Get(ctx, tenant, name, n)
			clear(v.Bytes)
			return err
		})
		if gone(err) {
			break
		}
		if err != nil {
			return k.failed(tenant, name, err)
		}
		d.Versions = append(d.Versions, describe("", &v))
	}
	return execute.Result{EffectType: "secret.shown", Output: document(d)}
}

// valid returns the version of a secret that a request for name receives, and the secret's
// name. The version before the newest one of NAME is released as NAME.previous until the
// overlap ends, unless a secret has that name itself.
func (k *keeper) valid(ctx context.Context, tenant, name string) (of string, v backend.Value, err error) {
	v, err = k.secrets.Get(ctx, tenant, name, 0)
	of, isPrevious := strings.CutSuffix(name, contract.PreviousSecret)
	if !isPrevious || !errors.Is(err, backend.ErrNotFound) {
		return name, v, err
	}
	newest, err := k.secrets.Get(ctx, tenant, of, 0)
	clear(newest.Bytes)
	switch {
	case err != nil:
		return of, v, err
	case newest.Overlap.IsZero() || k.expired(newest.Overlap):
		return of, v, backend.ErrNotFound
	}
	v, err = k.secrets.Get(ctx, tenant, of, newest.Version-1)
	return of, v, err
}

// An instance caches, for at most maxUsed secrets, when it last recorded a use, and records
// another use of the secret only after usedEvery.
const (
	maxUsed   = 4096
	usedEvery = time.Minute
)

// useKey returns the key of the events secret_used about a secret. A name may contain
// characters that a key may not.
func useKey(name string) string {
	h := sha256.Sum256([]byte(name))
	return contract.IDSecretUse + hex.EncodeToString(h[:16])
}

// recordUses records the uses of the released secrets that were not recorded within
// usedEvery. A failure is logged only: the release itself is on the ledger.
func (k *keeper) recordUses(ctx context.Context, e *contract.Event, all values) {
	now := k.env.Emit.Now()
	for _, r := range all {
		at := e.Tenant + "/" + r.of
		if last, ok := k.used.Get(at); ok && now.Sub(last) < usedEvery {
			continue
		}
		if _, err := k.env.Emit.Append(ctx, k.env.Emit.New(events.SecretUsedName, useKey(r.of), contract.Bytes(&events.SecretUsed{Name: r.of, Version: int64(r.version)}), e)); err != nil {
			k.env.Log.Warn("the use of a secret cannot be recorded", "tenant", e.Tenant, "name", r.of, "err", err)
			continue
		}
		k.used.Put(at, now)
	}
}

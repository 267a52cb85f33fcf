package vaultbroker

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/oauthtest"
)

const redirect = "http://127.0.0.1:4711/callback"

// begin begins a login for the secret "api" at an instance, and returns its id and URL, or the
// result of the call that failed.
func (o *oauthBrokers) begin(call string, args map[string]any) (id, address string, res execute.Result) {
	o.t.Helper()
	doc := map[string]any{"name": "api", "redirect_uri": redirect, "issuer": o.server.URL, "resource": "https://api.example/mcp", "scopes": []string{"read"}}
	for name, v := range args {
		if doc[name] = v; v == nil {
			delete(doc, name)
		}
	}
	b, err := json.Marshal(doc)
	if err != nil {
		o.t.Fatal(err)
	}
	k := o.of[0]
	res = k.keeper.manage(o.t.Context(), &execute.Work{Event: &contract.Event{Tenant: "t"}, Call: &contract.Call{ID: call, Kind: kindAuthorize}, Args: b})
	var out struct{ Authorization, URL string }
	if res.ErrorCode == "" && json.Unmarshal(res.Output, &out) != nil {
		o.t.Fatal(string(res.Output))
	}
	return out.Authorization, out.URL, res
}

// finish finishes a login at another instance.
func (o *oauthBrokers) finish(id string, got url.Values, members map[string]string) execute.Result {
	o.t.Helper()
	doc := map[string]string{"authorization": id, "code": got.Get("code"), "iss": got.Get("iss")}
	for name, v := range members {
		if doc[name] = v; v == "" {
			delete(doc, name)
		}
	}
	b, err := json.Marshal(doc)
	if err != nil {
		o.t.Fatal(err)
	}
	k := o.of[len(o.of)-1]
	a, bad := k.keeper.parse([]byte(`{"name":"api","type":"oauth"}`))
	if bad != nil {
		return *bad
	}
	return k.keeper.storeOrLogin(o.t.Context(), &execute.Work{Event: &contract.Event{Tenant: "t"}, Call: &contract.Call{ID: "c-2", Kind: kindStore}}, a, b)
}

// TestLogin shows that a login begins at one instance and ends at another, that its access token is
// released without a refresh, that a code is redeemed once, in time, for the login and the issuer
// that it belongs to, and that no result contains a credential.
func TestLogin(t *testing.T) {
	for _, public := range []bool{false, true} {
		o := newOAuthBrokers(t, 2)
		o.server.Public, o.server.Rotate = public, true
		id, address, res := o.begin("c-1", nil)
		if res.ErrorCode != "" {
			t.Fatal(res)
		}
		q, err := url.Parse(address)
		if err != nil || q.Query().Get("resource") != "https://api.example/mcp" || q.Query().Get("scope") != "read" || q.Query().Get("redirect_uri") != redirect || q.Query().Has("code_verifier") {
			t.Error(address, err)
		}
		got := o.server.Authorize(address)
		if r := o.finish(id, got, map[string]string{"iss": "https://other.example"}); r.ErrorCode != contract.CodeInvalidInput || !strings.Contains(r.ErrorMessage, "iss:") {
			t.Error("another issuer:", r.ErrorCode, r.ErrorMessage)
		}
		if r := o.finish(id, got, map[string]string{"iss": ""}); r.ErrorCode != contract.CodeInvalidInput {
			t.Error("no issuer, although the server names itself:", r.ErrorCode)
		}
		if r := o.finish("c-other", got, nil); r.ErrorCode != contract.CodeNotFound {
			t.Error("another login:", r.ErrorCode)
		}
		r := o.finish(id, got, nil)
		if r.ErrorCode != "" || strings.Contains(string(r.Output), "refresh-") {
			t.Fatal(r.ErrorCode, r.ErrorMessage, string(r.Output))
		}
		o.valid(o.use(0))
		if n := len(o.server.Requests()); n != 1 {
			t.Errorf("%d requests to the token endpoint", n)
		}
		if r := o.finish(id, got, nil); r.ErrorCode != contract.CodeNotFound {
			t.Error("a code for the second time:", r.ErrorCode)
		}
		o.pass(unknownLife * 20)
		o.valid(o.use(1)) // by the refresh token

		// The next login needs neither issuer nor resource, and ends in time only.
		id, address, res = o.begin("c-3", map[string]any{"issuer": nil, "resource": nil})
		if res.ErrorCode != "" || !strings.Contains(address, url.QueryEscape("https://api.example/mcp")) {
			t.Fatal(res.ErrorMessage, address)
		}
		o.pass(loginWithin)
		if r := o.finish(id, o.server.Authorize(address), nil); r.ErrorCode != contract.CodeNotFound {
			t.Error("too late:", r.ErrorCode)
		}
		id, address, _ = o.begin("c-4", nil)
		if r := o.finish(id, url.Values{"code": {"code-wrong"}, "iss": {o.server.URL}}, nil); r.ErrorCode != contract.CodeTokenRefused || !strings.Contains(r.ErrorMessage, "invalid_grant") || strings.Contains(r.ErrorMessage, "code-wrong") {
			t.Error("a wrong code:", r.ErrorCode, r.ErrorMessage)
		}
		if r := o.finish(id, o.server.Authorize(address), nil); r.ErrorCode != contract.CodeNotFound {
			t.Error("after a wrong code:", r.ErrorCode)
		}
		o.server.Close()
		if text := o.logged.String(); strings.Contains(text, "refresh-") || strings.Contains(text, "access-") || strings.Contains(text, oauthtest.ClientSecret) {
			t.Error(text)
		}
	}
}

// TestClientDocument shows that a login at a server that supports client-id metadata documents uses the
// configured document as a public client, and registers none, that a given client precedes it, and that
// other servers register a client.
func TestClientDocument(t *testing.T) {
	const document = "https://mesh.example/client.json"
	for _, supported := range []bool{true, false} {
		o := newOAuthBrokers(t, 2)
		for _, k := range o.of {
			k.keeper.tokens.document = document
		}
		o.server.Public, o.server.Members = true, map[string]any{"client_id_metadata_document_supported": supported}
		want := oauthtest.ClientID
		if supported {
			o.server.ID, o.server.Members["registration_endpoint"], want = document, nil, document
		}
		id, address, res := o.begin("c-1", nil)
		if q, err := url.Parse(address); err != nil || res.ErrorCode != "" || q.Query().Get("client_id") != want {
			t.Fatal(address, err, res.ErrorMessage)
		}
		if r := o.finish(id, o.server.Authorize(address), nil); r.ErrorCode != "" {
			t.Fatal(r.ErrorMessage)
		}
		o.valid(o.use(0))
		o.pass(unknownLife * 20)
		o.valid(o.use(1)) // by the refresh token
		if _, address, _ := o.begin("c-2", map[string]any{"client_id": "other"}); !strings.Contains(address, "client_id=other") {
			t.Error(address)
		}
	}
}

// TestUnsuitable shows which authorization servers and arguments are refused, with the argument
// named, before a person logs in.
func TestUnsuitable(t *testing.T) {
	o := newOAuthBrokers(t, 1)
	for _, x := range []struct {
		members, args map[string]any
		code, text    string
	}{
		{map[string]any{"issuer": "https://other.example"}, nil, contract.CodeInvalidInput, "issuer: the authorization server cannot be used: its metadata are those of another issuer"},
		{map[string]any{"code_challenge_methods_supported": []string{"plain"}}, nil, contract.CodeInvalidInput, "S256"},
		{map[string]any{"code_challenge_methods_supported": nil}, nil, contract.CodeInvalidInput, "S256"},
		{map[string]any{"grant_types_supported": []string{"client_credentials"}}, nil, contract.CodeInvalidInput, "authorization_code"},
		{map[string]any{"token_endpoint": "http://api.example/token"}, nil, contract.CodeInvalidInput, "token_endpoint"},
		{map[string]any{"authorization_endpoint": "javascript:alert(1)"}, nil, contract.CodeInvalidInput, "authorization_endpoint"},
		{map[string]any{"registration_endpoint": nil}, nil, contract.CodeInvalidInput, "client_id: the authorization server registers no clients"},
		{map[string]any{"token_endpoint_auth_methods_supported": []string{"none"}}, nil, contract.CodeTokenRefused, "invalid_client_metadata"},
		{nil, map[string]any{"issuer": o.server.URL + "/elsewhere"}, contract.CodeInvalidInput, "no metadata"},
		{nil, map[string]any{"issuer": nil}, contract.CodeInvalidInput, "issuer: it is no URL"},
		{nil, map[string]any{"resource": "api"}, contract.CodeInvalidInput, "resource: it is no URL"},
		{nil, map[string]any{"redirect_uri": "http://10.0.0.1:80/x"}, contract.CodeInvalidInput, "redirect_uri: want a loopback address"},
		{nil, map[string]any{"redirect_uri": "https://127.0.0.1/x"}, contract.CodeInvalidInput, "redirect_uri: want http"},
		{nil, map[string]any{"scopes": []string{"a b"}}, contract.CodeInvalidInput, "scopes:"},
		{nil, map[string]any{"name": "content-key-1"}, contract.CodeInvalidInput, "name:"},
	} {
		o.server.Members = x.members
		if _, address, r := o.begin("c-1", x.args); r.ErrorCode != x.code || !strings.Contains(r.ErrorMessage, x.text) || address != "" {
			t.Errorf("%v %v: %s %s", x.members, x.args, r.ErrorCode, r.ErrorMessage)
		}
	}
	if code := o.of[0].put(`{"name":"key","type":"api_key"}`, "k"); code != "" {
		t.Fatal(code)
	}
	if _, _, r := o.begin("c-1", map[string]any{"name": "key"}); r.ErrorCode != contract.CodeConflict {
		t.Error("a secret of another type:", r.ErrorCode)
	}
	o.server.Fail(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	o.server.Members = map[string]any{"scopes_supported": []string{"offline_access"}}
	id, address, r := o.begin("c-5", map[string]any{"client_id": oauthtest.ClientID})
	if q, err := url.Parse(address); err != nil || r.ErrorCode != "" || q.Query().Get("scope") != "read offline_access" || q.Query().Get("prompt") != "consent" {
		t.Error(address, r.ErrorMessage)
	}
	if r := o.finish(id, o.server.Authorize(address), map[string]string{"client_secret": oauthtest.ClientSecret}); r.ErrorCode != contract.CodeTokenUnavailable {
		t.Error("a server that fails:", r.ErrorCode, r.ErrorMessage)
	}
}

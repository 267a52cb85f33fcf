package logins

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"html/template"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/go-webauthn/webauthn/protocol"
	"github.com/go-webauthn/webauthn/protocol/webauthncose"
	"github.com/go-webauthn/webauthn/webauthn"
	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/approvals"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// PasskeysPath is the path of the page of passkeys.
const PasskeysPath = "/auth/passkeys"

// PasskeyForm is the form of POST /auth/passkeys. It registers a passkey, or ends the one in
// Remove.
type PasskeyForm struct {
	Credential string `json:"credential,omitempty"` // response of the authenticator (RegistrationResponseJSON)
	Name       string `json:"name,omitempty"`       // the person's name for the passkey
	State      string `json:"state,omitempty"`      // the state that the page has sent
	Remove     string `json:"remove,omitempty"`     // id of the credential to remove
}

// BallotForm is the form of POST /auth/approvals.
type BallotForm struct {
	Call       string `json:"call"`
	Credential string `json:"credential,omitempty"` // response of the authenticator (AuthenticationResponseJSON); absent if no passkey signs the vote
	Reason     string `json:"reason"`
	Vote       string `json:"vote"` // grant or deny
}

// passkeysPage holds the values of the part of page.html about passkeys.
type passkeysPage struct {
	Keys    []policy.Identity
	Options string // PublicKeyCredentialCreationOptionsJSON; empty if the page cannot register a passkey
	State   string
}

// ballotPage holds the values of the part of page.html about calls that wait for approval.
type ballotPage struct {
	Waiting []policy.PendingCall
	Call    *policy.PendingCall // the call to vote on; nil for the list
	Args    string
	Options string // see passkeys.js; empty if no passkey signs the vote
	Cannot  string // why the person cannot vote here; empty if it can
}

//go:embed passkeys.js
var passkeyScript template.JS

// scriptPolicy is the content security policy of the pages of passkeys: that of the other
// pages, with the one script.
var scriptPolicy = pagePolicy + "; script-src 'sha256-" + digestOf(string(passkeyScript)) + "'"

// algorithms are those of the passkeys that policy verifies.
var algorithms = []protocol.CredentialParameter{{Type: protocol.PublicKeyCredentialType, Algorithm: webauthncose.AlgES256},
	{Type: protocol.PublicKeyCredentialType, Algorithm: webauthncose.AlgEdDSA}, {Type: protocol.PublicKeyCredentialType, Algorithm: webauthncose.AlgRS256}}

// passkeyTTL is the time within which a person must register a passkey on a page.
const passkeyTTL = 10 * time.Minute

// webauthnUser is a person as the package webauthn identifies it: by a digest, because
// authenticators store the id.
type webauthnUser struct{ who *auth.Caller }

func (u webauthnUser) WebAuthnID() []byte {
	sum := sha256.Sum256([]byte(u.who.Tenant + "/" + u.who.Actor))
	return sum[:]
}
func (u webauthnUser) WebAuthnName() string                       { return u.who.Actor }
func (u webauthnUser) WebAuthnDisplayName() string                { return u.who.Actor }
func (u webauthnUser) WebAuthnCredentials() []webauthn.Credential { return nil }

// Voting serves the pages with which persons register passkeys and vote. Only passkeys need a script.
type Voting struct{ *Pages }

// relyingParty returns the relying party of the pages: the host and the origin under which
// browsers reach the gateways. The error (400) states why it can have no passkeys.
func (s Voting) relyingParty(c echo.Context) (*webauthn.WebAuthn, error) {
	base := s.API.Gate.Base(c)
	at, err := url.Parse(base)
	if err != nil || net.ParseIP(at.Hostname()) != nil || at.Scheme != "https" && at.Hostname() != "localhost" {
		return nil, apierr.BadRequest("Host", "passkeys need a name of a host over TLS, or http://localhost; this page is at "+base)
	}
	return webauthn.New(&webauthn.Config{RPID: at.Hostname(), RPDisplayName: "Binnacle", RPOrigins: []string{at.Scheme + "://" + at.Host},
		ExtensionsUnsolicitedOutputPolicy: protocol.UnsolicitedOutputPolicyIgnore})
}

// own returns the passkeys of a person.
func (s Voting) own(ctx context.Context, who *auth.Caller) ([]policy.Identity, error) {
	all, err := queries.Do(ctx, s.API.Queries.In(who.Tenant), policy.IdentitiesQuery, policy.IdentitiesRequest{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all.Identities, func(i policy.Identity) bool {
		return i.Kind != "passkey" || i.Principal != who.Actor || i.ToLamport != 0
	}), nil
}

// Passkeys handles GET /auth/passkeys: the page on which a person who is logged in registers
// and removes passkeys. If the host cannot have passkeys, the page states why.
func (s Voting) Passkeys(c echo.Context) error {
	who, err := s.API.Gate.Browser(c)
	if err != nil {
		return s.enterFirst(c, err, "")
	}
	x := passkeysPage{}
	if x.Keys, err = s.own(c.Request().Context(), who); err != nil {
		return s.fail(c, err)
	}
	out := page{Title: "Passkeys", Text: "A passkey signs your votes on calls that wait for approval.", Who: who, Passkeys: &x, Script: passkeyScript}
	rp, err := s.relyingParty(c)
	if err != nil {
		out.Text = err.Error()
		return show(c, http.StatusOK, &out)
	}
	var exclude []protocol.CredentialDescriptor
	for _, k := range x.Keys {
		if id, err := base64.RawURLEncoding.DecodeString(k.ID); err == nil {
			exclude = append(exclude, protocol.CredentialDescriptor{Type: protocol.PublicKeyCredentialType, CredentialID: id})
		}
	}
	creation, session, err := rp.BeginRegistration(webauthnUser{who}, webauthn.WithCredentialParameters(algorithms), webauthn.WithExclusions(exclude),
		webauthn.WithAuthenticatorSelection(protocol.AuthenticatorSelection{UserVerification: protocol.VerificationRequired}))
	if err != nil {
		return s.fail(c, err)
	}
	options, err := json.Marshal(creation.Response)
	if err != nil {
		return s.fail(c, err)
	}
	now := time.Now()
	x.Options = string(options)
	x.State, err = s.API.issue(&token.Claims{Use: token.UsePasskey, Tenant: who.Tenant, Login: who.Login, Nonce: session.Challenge}, who.Actor, now, now.Add(passkeyTTL))
	if err != nil {
		return s.fail(c, err)
	}
	return show(c, http.StatusOK, &out)
}

// ChangePasskey handles POST /auth/passkeys, whose form is a PasskeyForm. If the registration
// waits for the approval of another person, the page states that.
func (s Voting) ChangePasskey(c echo.Context) error {
	f, err := s.posted(c)
	if err != nil {
		return s.fail(c, err)
	}
	who, err := s.API.Gate.Browser(c)
	if err != nil {
		return s.fail(c, err)
	}
	kind, args := "policy.remove_passkey", removal(f.Get("remove"))
	if f.Get("remove") == "" {
		kind = "policy.register_passkey"
		if args, err = s.registration(c, who, f); err != nil {
			return s.fail(c, err)
		}
	}
	// Policy accepts a registration only from a gateway at which the person has authenticated.
	by := person(who.Tenant, who.Actor, "browser")
	r, err := s.API.request(by, kind, args)
	if err == nil {
		err = s.API.Gate.Suspended(r.Tenant, r.Actor)
	}
	if err == nil {
		_, _, err = s.API.Calls.Await(c.Request().Context(), r, true)
	}
	var waits *apierr.Escalation
	switch {
	case errors.As(err, &waits):
		return show(c, http.StatusOK, &page{Title: "Waits for approval", Text: "Another person must approve the passkey: call " + waits.CallID + "."})
	case err != nil:
		return s.fail(c, err)
	}
	return show(c, http.StatusOK, &page{Title: "Done", Next: PasskeysPath})
}

func removal(id string) []byte {
	w := canon.Object(nil)
	w.Str("id", id)
	w.Str("reason", "removed by the person")
	return w.End()
}

// registration verifies the attestation of a new passkey, and returns the arguments of the
// call that registers it.
func (s Voting) registration(c echo.Context, who *auth.Caller, f url.Values) ([]byte, error) {
	rp, err := s.relyingParty(c)
	if err != nil {
		return nil, err
	}
	state, err := token.VerifyUse(s.API.Gate.LoginKeys, f.Get("state"), token.UsePasskey)
	if err != nil || state.Tenant != who.Tenant || state.Subject != who.Actor || state.Login != who.Login {
		return nil, apierr.BadRequest("state", "has expired, or is that of another login; load the page again")
	}
	parsed, err := protocol.ParseCredentialCreationResponseBytes([]byte(f.Get("credential")))
	if err != nil {
		return nil, apierr.BadRequest("credential", "is not the response of an authenticator")
	}
	user := webauthnUser{who}
	k, err := rp.CreateCredential(user, webauthn.SessionData{Challenge: state.Nonce, UserID: user.WebAuthnID(), Expires: state.ExpiresAt.Time,
		UserVerification: protocol.VerificationRequired, CredParams: algorithms}, parsed)
	if err != nil {
		return nil, apierr.BadRequest("credential", "the attestation does not verify: "+err.Error())
	}
	key, _ := pem.Decode([]byte(webauthncose.DisplayPublicKey(k.PublicKey)))
	if key == nil {
		return nil, apierr.BadRequest("credential", "the algorithm of the key is not supported")
	}
	aaguid := make([]byte, 16)
	copy(aaguid, k.Authenticator.AAGUID)
	w := canon.Object(nil)
	w.Str("aaguid", hex.EncodeToString(aaguid))
	w.Str("attestation", cmp.Or(k.AttestationFormat, "none"))
	w.Str("id", base64.RawURLEncoding.EncodeToString(k.ID))
	w.Str("name", f.Get("name"))
	w.Str("origin", rp.Config.RPOrigins[0])
	w.Str("public_key", base64.StdEncoding.EncodeToString(key.Bytes))
	w.Str("rp_id", rp.Config.RPID)
	w.Int("sign_count", int64(k.Authenticator.SignCount))
	return w.End(), nil
}

// listEvery is the number of seconds after which a browser loads the list of calls again.
const listEvery = "10"

// voter returns the person who is logged in, who must not be suspended and must have the scope
// to vote.
func (s Voting) voter(c echo.Context) (*auth.Caller, error) {
	who, err := s.API.Gate.Browser(c)
	if err == nil {
		err = s.API.Gate.Suspended(who.Tenant, who.Actor)
	}
	if err == nil && !slices.Contains(who.Scopes, token.Vote) {
		err = auth.ScopeMissing(token.Vote)
	}
	return who, err
}

// Ballot handles GET /auth/approvals: the list of the calls that wait for approval or, with the
// parameter call, the page on which a person votes on one of them. A person who is not logged in logs
// in first.
func (s Voting) Ballot(c echo.Context) error {
	call := c.QueryParam("call")
	who, err := s.voter(c)
	if err != nil {
		return s.enterFirst(c, err, call)
	}
	ctx, in := c.Request().Context(), s.API.Queries.In(who.Tenant)
	x := ballotPage{}
	out := page{Title: "Approvals", Who: who, Ballot: &x}
	if call == "" {
		if x.Waiting, err = queries.Do(ctx, in, policy.ApprovalsQuery, policy.ApprovalsRequest{}); err != nil {
			return s.fail(c, err)
		}
		c.Response().Header().Set("Refresh", listEvery)
		return show(c, http.StatusOK, &out)
	}
	w, err := queries.Do(ctx, in, policy.ApprovalQuery, policy.ApprovalRequest{CallID: call})
	if err != nil {
		return s.fail(c, err)
	}
	x.Call = &w
	var args bytes.Buffer
	if json.Indent(&args, w.Args, "", "  ") == nil {
		x.Args = args.String()
	}
	keys, err := s.own(ctx, who)
	if err != nil {
		return s.fail(c, err)
	}
	if err := s.ballot(c, who, &x, keys); err != nil {
		return s.fail(c, err)
	}
	if x.Options != "" {
		out.Script = passkeyScript
	}
	return show(c, http.StatusOK, &out)
}

// ballot sets how a person votes on the call x.Call. One of the person's passkeys signs the vote, if
// there is one and the host can have passkeys; x.Options is then what passkeys.js needs, as JSON.
// Otherwise the vote has no signature, or the person cannot vote if a rule for the call requires one.
func (s Voting) ballot(c echo.Context, who *auth.Caller, x *ballotPage, keys []policy.Identity) error {
	w := x.Call
	rp, err := s.relyingParty(c)
	if err != nil || len(keys) == 0 {
		if slices.ContainsFunc(w.Rules, func(r contract.ApprovalRule) bool { return r.Passkey }) {
			x.Cannot = "You have no passkey, and only votes that one signs count for this call."
			if err != nil {
				x.Cannot = err.Error()
			}
		}
		return nil
	}
	var doc struct {
		Ballot contract.Ballot `json:"ballot"`
		Domain string          `json:"domain"`
		IDs    []string        `json:"ids"`
		RPID   string          `json:"rp_id"`
	}
	doc.Ballot = contract.Ballot{Approver: who.Actor, CallID: w.CallID, DecisionDigest: w.DecisionDigest, Tenant: who.Tenant}
	doc.Domain, doc.RPID = sign.DomainPasskey, rp.Config.RPID
	for _, k := range keys {
		doc.IDs = append(doc.IDs, k.ID)
	}
	raw, err := json.Marshal(&doc)
	x.Options = string(raw)
	return err
}

// Vote handles POST /auth/approvals, whose form is a BallotForm: it proposes the vote. If a passkey
// has signed it, policy verifies the signature.
func (s Voting) Vote(c echo.Context) error {
	f, err := s.posted(c)
	if err != nil {
		return s.fail(c, err)
	}
	who, err := s.voter(c)
	if err != nil {
		return s.fail(c, err)
	}
	req := approvals.VoteRequest{Vote: f.Get("vote"), Reason: f.Get("reason")}
	out := page{Title: "Recorded", Text: "Your vote is on the ledger.", Who: who}
	if credential := f.Get("credential"); credential != "" {
		if req.Passkey, err = assertion(credential); err != nil {
			return s.fail(c, err)
		}
		out.Text = "Your vote is on the ledger, with the signature of your passkey."
	}
	if err := s.propose(c, who, approvals.KindVote, req.Args(f.Get("call"))); err != nil {
		return s.fail(c, err)
	}
	return show(c, http.StatusOK, &out)
}

// assertion returns the assertion in the response of an authenticator.
func assertion(credential string) (*contract.Assertion, error) {
	var signed struct {
		ID       string `json:"id"`
		Response struct {
			Data      string `json:"authenticatorData"`
			Client    string `json:"clientDataJSON"`
			Signature string `json:"signature"`
		} `json:"response"`
	}
	if err := json.Unmarshal([]byte(credential), &signed); err != nil {
		return nil, apierr.BadRequest("credential", "is not the response of an authenticator")
	}
	return &contract.Assertion{AuthenticatorData: signed.Response.Data, ClientData: signed.Response.Client, CredentialID: signed.ID, Signature: signed.Response.Signature}, nil
}

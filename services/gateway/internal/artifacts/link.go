package artifacts

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
)

// LinkRequest is the body of POST /api/v1/artifacts/:id/link.
type LinkRequest struct {
	TTL int64 `json:"ttl_s,omitempty"` // time in seconds for which the link is valid, 1 to 604800; 0 means 900
}

// LinkResponse is the response of POST /api/v1/artifacts/:id/link.
type LinkResponse struct {
	Artifact string `json:"artifact"`
	CallID   string `json:"call_id"` // call that permitted the link
	Expires  string `json:"expires"` // end of the link's validity (RFC 3339)
	Path     string `json:"path"`    // path that returns the content at every gateway of the mesh, without a credential
}

// LinkPath is the path of signed links.
const LinkPath = "/a/"

// link is the content of a signed link. Anyone who has the link can read an artifact of
// a tenant until Expires.
type link struct {
	Artifact string
	CallID   string
	Expires  string
	KID      string // id of the key with which a gateway signed the link
	Owner    string // principal who made the link; the link is not valid while the principal is suspended
	Tenant   string
	Upload   string // upload of the artifact; its deletion ends the link
}

// Canonical implements canon.Document.
func (l *link) Canonical(c *canon.Codec) {
	c.Str("artifact", &l.Artifact)
	c.Str("call_id", &l.CallID)
	c.Str("expires", &l.Expires)
	c.Str("kid", &l.KID)
	c.Str("owner", &l.Owner)
	c.Str("tenant", &l.Tenant)
	c.Str("upload", &l.Upload)
}

// Link handles POST /api/v1/artifacts/:id/link. It proposes a call artifact.link and, if
// it succeeds, signs a link. The ledger records the call but not the link.
func (s *API) Link(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	var req LinkRequest
	if len(body.Raw(c)) > 0 {
		if _, err := body.Into(c, &req); err != nil {
			return err
		}
	}
	key := s.Env.SignKey()
	if key == nil {
		return apierr.Unavailable("this gateway has no signing key yet")
	}
	args := canon.Object(nil)
	args.Str("artifact", c.Param("id"))
	if req.TTL != 0 {
		args.Int("ttl_s", req.TTL)
	}
	r, err := s.Calls.Request(c, "tool."+toolLink, toolLink, args.End(), who)
	if err != nil {
		return err
	}
	_, output, err := s.Calls.Run(c, r)
	if err != nil {
		return s.Calls.Escalated(c, r, err)
	}
	var permitted struct {
		Artifact string `json:"artifact"`
		Expires  string `json:"expires"`
		Upload   string `json:"upload"`
	}
	if err := json.Unmarshal(output, &permitted); err != nil {
		return err
	}
	l := link{Artifact: permitted.Artifact, CallID: r.ID, Expires: permitted.Expires, KID: key.KID, Owner: who.Actor, Tenant: who.Tenant, Upload: permitted.Upload}
	return c.JSON(http.StatusOK, LinkResponse{Artifact: l.Artifact, CallID: r.ID, Expires: l.Expires, Path: LinkPath + l.text(key)})
}

// text returns the link in the form that parse reads, signed with key.
func (l *link) text(key *sign.Key) string {
	doc := contract.Bytes(l)
	return base64.RawURLEncoding.EncodeToString(doc) + "." + base64.RawURLEncoding.EncodeToString([]byte(key.Sign(sign.DomainLink, doc)))
}

// errLink is the error for a link that is not valid. It does not state why.
var errLink = &apierr.Error{Status: http.StatusForbidden, Type: "permission_error", Code: contract.CodeLinkInvalid, Message: "the link is not signed by a gateway of this mesh, or it has expired: make another one with POST /api/v1/artifacts/ID/link"}

// parse returns the content of a signed link. It returns errLink if the link is malformed, has
// expired at now, or is not signed with a key of a gateway. key returns the public key with the
// given id, or an error if it is not a key of a gateway.
func parse(text string, now time.Time, key func(kid string) ([]byte, error)) (*link, error) {
	first, second, _ := strings.Cut(text, ".")
	doc, err := base64.RawURLEncoding.Strict().DecodeString(first)
	if err != nil {
		return nil, errLink
	}
	sig, err := base64.RawURLEncoding.Strict().DecodeString(second)
	if err != nil {
		return nil, errLink
	}
	var l link
	if contract.Decode(doc, &l) != nil {
		return nil, errLink
	}
	public, err := key(l.KID)
	if err != nil || sign.Verify(public, sign.DomainLink, doc, string(sig)) != nil {
		return nil, errLink
	}
	if end, err := contract.ParseTime(l.Expires); err != nil || !now.Before(end) {
		return nil, errLink
	}
	return &l, nil
}

// Linked handles GET /a/:link. It responds with the content that a signed link
// permits, without a credential. The error is 403 if the link is invalid or has
// expired, or if the principal who made it or its tenant is suspended. It is 404 if
// the upload that the link was made for was deleted, even if another upload has the
// same content.
func (s *API) Linked(c echo.Context) error {
	l, err := parse(c.Param("link"), s.Env.Emit.Now(), func(kid string) ([]byte, error) {
		return s.Env.Trust.At(kid, services.Gateway, contract.UseReceipt, s.Env.Emit.Tick())
	})
	if err != nil {
		return err
	}
	if err := s.Gate.Suspended(l.Tenant, l.Owner); err != nil {
		return err
	}
	if l.Upload == "" {
		return errLink
	}
	a, err := s.find(c.Request().Context(), l.Tenant, work.ArtifactInfoRequest{Artifact: l.Artifact, Upload: l.Upload})
	if err != nil {
		return err
	}
	return s.send(c, l.Tenant, &a)
}

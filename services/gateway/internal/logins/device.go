package logins

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// deviceTTL is the time within which a person must approve a device.
const deviceTTL = 10 * time.Minute

// DeviceRequest is the form of POST /oauth/device (RFC 8628, section 3.1).
type DeviceRequest struct {
	Client string `json:"client_id,omitempty"`
	Scope  string `json:"scope,omitempty"`
	Tenant string `json:"tenant,omitempty"`
}

// DeviceResponse is the response to a DeviceRequest.
type DeviceResponse struct {
	Device   string `json:"device_code"`
	User     string `json:"user_code"`
	URI      string `json:"verification_uri"`
	Complete string `json:"verification_uri_complete"`
	Expires  int64  `json:"expires_in"` // seconds
	Interval int64  `json:"interval"`   // seconds
}

// Device handles POST /oauth/device. The device code is a token that any gateway can
// verify, and the code that the person enters is computed from it, so gateways store
// nothing.
func (s *API) Device(c echo.Context) error {
	c.Response().Header().Set("Cache-Control", "no-store")
	form, err := formOf(c)
	if err != nil {
		return failed(c, err)
	}
	f := form.Get
	tenant := s.tenant(f("tenant"))
	now := time.Now()
	raw, err := s.issue(&token.Claims{Use: token.UseDevice, Tenant: tenant, Client: f("client_id"), Scopes: strings.Fields(f("scope"))}, "", now, now.Add(deviceTTL))
	if err != nil {
		return failed(c, err)
	}
	user, at := userCode(raw), s.Gate.Base(c)+"/auth/device"
	return c.JSON(http.StatusOK, DeviceResponse{Device: raw, User: user, URI: at, Complete: at + "?code=" + url.QueryEscape(user), Expires: int64(deviceTTL / time.Second), Interval: 2})
}

// letters is the encoding of user codes: Crockford's base 32, which has no letters that
// look like digits.
var letters = base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ").WithPadding(base32.NoPadding)

// userCode returns the code that a person enters for a device code: nine characters, 45 bits.
func userCode(device string) string {
	sum := sha256.Sum256([]byte(device))
	code := letters.EncodeToString(sum[:6])
	return code[:3] + "-" + code[3:6] + "-" + code[6:9]
}

// deviceKey returns the key of the event that approves a user code or an authorization code.
func deviceKey(user string) string {
	sum := sha256.Sum256([]byte(user))
	return contract.IDLogin + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16])
}

// byDevice opens the login of a device whose code a person has approved.
func (s *API) byDevice(ctx context.Context, raw string) (*TokenResponse, error) {
	c, err := token.VerifyUse(s.Gate.LoginKeys, raw, token.UseDevice)
	if err != nil {
		return nil, refuse(contract.OAuthExpired, "the device code is not valid, or has expired")
	}
	d, err := s.approvalOf(ctx, c.Tenant, userCode(raw))
	if err != nil {
		return nil, err
	}
	scopes := approved(d.Scopes, c.Scopes)
	if len(scopes) == 0 {
		return nil, refuse(contract.OAuthDenied, "the approval covers none of the scopes that the device requested; approve the code of a new request with these scopes")
	}
	// The id of the login is derived from the device code, so that the code opens only one login.
	return s.open(ctx, person(c.Tenant, d.Principal, "device"), opening{id: contract.IDLogin + c.ID, client: c.Client, scopes: scopes, ttl: programTTL})
}

// approvalOf returns a person's approval of a code, if it can be used now.
func (s *API) approvalOf(ctx context.Context, tenant, code string) (*events.DeviceApproved, error) {
	filter := bus.Filter{Tenant: tenant, Service: services.Policy, Event: contract.EventDeviceApproved, Key: deviceKey(code)}.String()
	en, err := s.Ledger.Last(ctx, filter)
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, refuse(contract.OAuthPending, "no person has approved the code yet")
	}
	if err != nil {
		return nil, apierr.Unavailable("the ledger does not respond")
	}
	e, err := eventlog.Open(en, filter)
	if err != nil {
		return nil, err
	}
	var d events.DeviceApproved
	if err := contract.Decode(e.Data, &d); err != nil {
		return nil, err
	}
	if d.Code != sign.Digest([]byte(code)) || d.Expires <= contract.Time(time.Now()) {
		return nil, refuse(contract.OAuthExpired, "the approval has expired")
	}
	// The revocation of a person's credentials also ends the approvals that were not used yet.
	if at, err := contract.ParseTime(e.Time); err != nil || s.Gate.Authority.Ended(tenant, d.Principal, at) {
		return nil, refuse(contract.OAuthDenied, "the credentials of the person were revoked after the approval")
	}
	return &d, nil
}

// approved returns the scopes of an approval, limited to those that the device requested unless it
// requested none. If the result is empty, no login may be opened: it would have the scopes of all
// of the person's roles.
func approved(scopes, requested []string) []string {
	if len(requested) == 0 {
		return scopes
	}
	return slices.DeleteFunc(slices.Clone(scopes), func(s string) bool { return !slices.Contains(requested, s) })
}

// DeviceApproval is the body of POST /api/v1/devices.
type DeviceApproval struct {
	Code   string   `json:"code"`             // the code that the device shows
	Scopes []string `json:"scopes,omitempty"` // the login is limited to these; empty means those of the caller's credential
}

// ApproveDevice handles POST /api/v1/devices: the caller permits the program that shows a
// code to open a login of the caller.
func (s *API) ApproveDevice(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	var req DeviceApproval
	if _, err := body.Into(c, &req); err != nil {
		return err
	}
	args, err := approval(req.Code, req.Scopes)
	if err != nil {
		return err
	}
	return s.Calls.Respond(c, who, kindApprove, kindApprove, args)
}

const kindApprove = "policy.approve_device"

// approvalArgs returns the arguments of the call that approves a code: a user code or an
// authorization code.
func approvalArgs(code string, scopes []string, ttl time.Duration) []byte {
	w := canon.Object(nil)
	w.Str("code", sign.Digest([]byte(code)))
	w.Str("id", deviceKey(code))
	if len(scopes) > 0 {
		w.Strs("requested", scopes)
	}
	w.Int("ttl_ms", ttl.Milliseconds())
	return w.End()
}

// approval returns the arguments of the call that approves a user code.
func approval(code string, scopes []string) ([]byte, error) {
	code = strings.ToUpper(strings.TrimSpace(code))
	if len(code) != 11 {
		return nil, apierr.BadRequest("/code", "want the code that the device shows, such as BCD-FGH-JKM")
	}
	return approvalArgs(code, scopes, deviceTTL), nil
}

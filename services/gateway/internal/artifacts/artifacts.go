// Package artifacts serves the REST API of artifacts. It stores uploads as they arrive and
// proposes the calls artifact.put that make them artifacts, reads content with ranges, and
// makes and verifies signed links.
package artifacts

import (
	"cmp"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API serves the routes of artifacts. Its fields are set before its first use.
type API struct {
	Gate    *auth.Gate
	Calls   *calls.API
	Queries *queries.Services
	Env     *run.Env
	Store   artifact.Store
	Uploads *fair.Places // uploads in progress

	pending pending
}

// The tools that the API calls.
const (
	toolPut  = "artifact.put"
	toolLink = "artifact.link"
)

// Limits of uploads.
const (
	MaxUploads = 32               // uploads in progress at a gateway
	idle       = 30 * time.Second // maximum time for which no data of an upload arrives
	longest    = 12 * time.Hour   // maximum duration of an upload; its call must run before the collector removes the upload
	verifying  = 10 * time.Hour   // maximum timeout of the call of an upload
	slowest    = 4 << 20          // bytes that work verifies in a second at least
)

// errIdle is the error of an upload of which no data arrived for idle.
var errIdle = &apierr.Error{Status: http.StatusRequestTimeout, Type: "invalid_request_error", Code: contract.CodeBodyTooSlow, Param: apierr.WholeBody, Message: "no data of the upload arrived for " + idle.String()}

// errLong is the error of an upload that takes longer than longest.
var errLong = &apierr.Error{Status: http.StatusRequestTimeout, Type: "invalid_request_error", Code: contract.CodeBodyTooSlow, Param: apierr.WholeBody, Message: "the upload took longer than " + longest.String()}

// errQuota is the error of an upload for which the tenant's quota has no room.
var errQuota = &apierr.Error{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: contract.CodeBodyTooLarge, Param: apierr.WholeBody,
	Message: "the quota of the tenant has no room for the upload: delete artifacts, or wait until uploads whose call did not succeed are removed, a day after they began"}

// errFull is the error of an upload for which the store has no room.
var errFull = &apierr.Error{Status: http.StatusInsufficientStorage, Type: "server_error", Code: contract.CodeArtifactsFull, Param: apierr.WholeBody, Message: artifact.ErrFull.Error()}

// Upload handles POST /api/v1/artifacts. It stores the body as it arrives, proposes a call
// artifact.put, and responds with the outcome of the call. The body is not part of the call's
// arguments. These hold its size and digests, on which policy decides. Content whose call is not
// allowed cannot be read, and is removed after a day. Until then it counts, at this gateway, as a
// part of the tenant's quota. An upload that is repeated under an Idempotency-Key is answered with
// the outcome of the first one, and not stored, unless that one was denied. A different upload
// under the key is rejected (409).
func (s *API) Upload(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	if s.Store == nil {
		return apierr.Unavailable("this gateway has no connection to the store of artifacts")
	}
	leave, ok := s.Uploads.Take(who.Tenant)
	if !ok {
		return &apierr.Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: contract.CodeQuotaExceeded, RetryAfter: "1", Message: "too many uploads are in progress at this gateway; send the request again"}
	}
	defer leave()
	retain, err := number(c, "retain_s", 0, 3153600000, 0)
	if err != nil {
		return err
	}
	labels, err := labelled(c.QueryParam("labels"))
	if err != nil {
		return err
	}
	content, err := incoming(c)
	if err != nil {
		return err
	}
	now := upload{MediaType: cmp.Or(c.Request().Header.Get("Content-Type"), "application/octet-stream"), Name: cmp.Or(c.QueryParam("name"), "artifact"), RetainS: retain, labels: strings.Join(labels, ",")}
	args, r, err := s.prior(c, who)
	if err != nil {
		return err
	}
	if args != nil {
		return s.again(c, who, args, r, now, content)
	}
	key := ""
	if r.Encrypt {
		if key, _, err = s.Env.Blobs.Keys.Current(c.Request().Context(), who.Tenant, r.Key.Subject); err != nil {
			return apierr.Unavailable("the upload cannot be encrypted now: " + err.Error())
		}
	}
	room, err := s.room(c.Request().Context(), who.Tenant, c.Request().ContentLength)
	if err != nil {
		return err
	}
	count := &counted{body: content, take: func(n int64) bool { return s.pending.take(who.Tenant, n, room, time.Now()) }}
	recorded := false
	defer func() { s.pending.end(who.Tenant, count.n, recorded, time.Now()) }()
	o, err := artifact.Write(c.Request().Context(), s.Store, who.Tenant, services.Gateway, key, c.Request().ContentLength, count)
	if err != nil {
		return uploadError(err)
	}
	body.Streamed(c)
	put := canon.Object(nil)
	put.Str("digest", o.Digest)
	put.Str("index", o.Index)
	if len(labels) > 0 {
		put.Strs("labels", labels)
	}
	put.Str("media_type", now.MediaType)
	put.Str("name", now.Name)
	put.Int("retain_s", retain)
	put.Int("size", o.Size)
	put.Str("upload", o.Upload)
	err = s.respond(c, who, put.End(), o.Size)
	recorded = err == nil && c.Response().Status == http.StatusOK // with 202, the call has no outcome yet
	now.Digest, now.Size = o.Digest, o.Size
	return s.afterwards(c, who, now, err)
}

// respond proposes the call artifact.put for size bytes that were stored, and responds with its
// outcome. Work reads and verifies all of them: without a calls.TimeoutHeader, the timeout grows
// with the size. A ledger that does not respond for less than calls.Patience does not end the call,
// because the content would have to be sent again.
func (s *API) respond(c echo.Context, who *auth.Caller, args []byte, size int64) error {
	r, err := s.Calls.Request(c, "tool."+toolPut, toolPut, args, who)
	if err != nil {
		return err
	}
	if c.Request().Header.Get(calls.TimeoutHeader) == "" {
		r.Timeout = toVerify(r.Timeout, size)
	}
	r.Patience = calls.Patience
	return s.Calls.Answer(c, r)
}

// toVerify returns the timeout of a call that verifies size bytes, if that of a call without any is
// least.
func toVerify(least time.Duration, size int64) time.Duration {
	return min(least+time.Duration(size/slowest)*time.Second, verifying)
}

// room returns the number of bytes that the quota of a tenant has left. The error is
// errQuota or errFull if an upload of size bytes exceeds it, or the limit of the store; a
// negative size is unknown.
func (s *API) room(ctx context.Context, tenant string, size int64) (int64, error) {
	used, err := queries.Do(ctx, s.Queries.In(tenant), work.ArtifactUsageQuery, work.ArtifactUsageRequest{})
	if err != nil {
		return 0, err
	}
	room := used.Quota - used.Used
	if size > room {
		return 0, errQuota
	}
	b, limited := s.Store.(artifact.Bounded)
	if !limited {
		return room, nil
	}
	free, err := b.Room(ctx)
	if err != nil {
		return 0, apierr.Unavailable("the upload cannot be stored now: " + err.Error())
	}
	if free <= max(size, 0) {
		return 0, errFull
	}
	return room, nil
}

// incoming returns a reader of a request's body that enforces the time limits of
// uploads. It returns an error (415) if the body has a content encoding.
func incoming(c echo.Context) (io.Reader, error) {
	r := c.Request()
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, &apierr.Error{Status: http.StatusUnsupportedMediaType, Type: "invalid_request_error", Code: contract.CodeEncodingUnsupported, Param: "Content-Encoding",
			Message: "content encodings are not supported; send the body as it is"}
	}
	return &paced{body: r.Body, rc: http.NewResponseController(c.Response()), end: time.Now().Add(longest)}, nil
}

// paced reads the body of an upload. Each part must arrive within idle, and the whole
// body before end.
type paced struct {
	body io.Reader
	rc   *http.ResponseController
	end  time.Time // latest end of the upload
}

// Read implements io.Reader.
func (p *paced) Read(b []byte) (int, error) {
	if time.Now().After(p.end) {
		return 0, errLong
	}
	_ = p.rc.SetReadDeadline(time.Now().Add(idle)) // fails for a response recorder, which has no connection
	n, err := p.body.Read(b)
	if err != nil {
		_ = p.rc.SetReadDeadline(time.Time{})
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errIdle // a timeout of the store is none of the client's
	}
	return n, err
}

// uploadError returns the error of the API for an upload that could not be stored.
func uploadError(err error) error {
	switch {
	case errors.Is(err, errQuota):
		return errQuota
	case errors.Is(err, errLong):
		return errLong
	case errors.Is(err, errIdle):
		return errIdle
	case errors.Is(err, artifact.ErrFull):
		return errFull
	case errors.Is(err, artifact.ErrTooLarge):
		return &apierr.Error{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: contract.CodeBodyTooLarge, Param: apierr.WholeBody, Message: "an artifact has at most " + strconv.Itoa(artifact.MaxSize) + " bytes"}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.Canceled):
		return apierr.BadRequest(apierr.WholeBody, "the upload ended before its announced length")
	}
	return apierr.Unavailable("the upload cannot be stored now: " + err.Error())
}

// labelled returns the labels in the query parameter labels, NAME=VALUE,…. It returns an
// error (400) if one is malformed. Policy receives them as they are; work sorts them.
func labelled(v string) ([]string, error) {
	if v == "" {
		return nil, nil
	}
	labels := strings.Split(v, ",")
	for _, l := range labels {
		if !artifact.IsLabel(l) {
			return nil, apierr.BadRequest("labels", artifact.WantLabel)
		}
	}
	if len(labels) > artifact.MaxLabels {
		return nil, apierr.BadRequest("labels", "an artifact has at most "+strconv.Itoa(artifact.MaxLabels)+" labels")
	}
	return labels, nil
}

// number returns the query parameter with the given name as a number, or the value of
// without if the parameter is absent or empty. It returns an error (400) if the
// parameter is not a number from least to most.
func number(c echo.Context, name string, least, most, without int64) (int64, error) {
	v := c.QueryParam(name)
	if v == "" {
		return without, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < least || n > most {
		return 0, apierr.BadRequest(name, "want a number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10))
	}
	return n, nil
}

// List handles GET /api/v1/artifacts. It responds with the caller's artifacts, newest
// first. With all=true, it responds with those of all principals of the tenant, and the
// caller needs the scope token.Audit.
func (s *API) List(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	limit, err := number(c, "limit", 1, 1000, 100)
	if err != nil {
		return err
	}
	of := who.Actor
	if c.QueryParam("all") == "true" {
		if of = who.Reads(); of != "" {
			return auth.ScopeMissing(token.Audit)
		}
	}
	label := c.QueryParam("label")
	if label != "" && !artifact.IsLabel(label) {
		return apierr.BadRequest("label", artifact.WantLabel)
	}
	return queries.Send(c, s.Queries.In(who.Tenant), work.ArtifactListQuery, work.ArtifactListRequest{Owner: of, Label: label, Before: c.QueryParam("before"), Limit: limit})
}

// find returns the artifact that q identifies. It returns an error (400) if the id is
// malformed.
func (s *API) find(ctx context.Context, tenant string, q work.ArtifactInfoRequest) (work.Artifact, error) {
	if artifact.DigestOf(q.Artifact) == "" {
		return work.Artifact{}, apierr.BadRequest("id", "an artifact's id is ar- and 64 lower-case hex digits")
	}
	return queries.Do(ctx, s.Queries.In(tenant), work.ArtifactInfoQuery, q)
}

// Info handles GET /api/v1/artifacts/:id.
func (s *API) Info(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	a, err := s.find(c.Request().Context(), who.Tenant, work.ArtifactInfoRequest{Artifact: c.Param("id"), Owner: who.Reads()})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, a)
}

// Content handles GET /api/v1/artifacts/:id/content. It responds with the content, or with
// the ranges of it that the request names (RFC 9110, section 14).
func (s *API) Content(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	a, err := s.find(c.Request().Context(), who.Tenant, work.ArtifactInfoRequest{Artifact: c.Param("id"), Owner: who.Reads()})
	if err != nil {
		return err
	}
	return s.send(c, who.Tenant, &a)
}

// send responds with the content of an artifact. Because its owner chose its media type, the
// response headers prevent a browser from interpreting it as a page of this origin.
func (s *API) send(c echo.Context, tenant string, a *work.Artifact) error {
	o := artifact.Object{Tenant: tenant, Service: a.Service, Upload: a.Upload, Size: a.Size, Digest: artifact.DigestOf(a.Artifact), Index: a.Index}
	r, err := artifact.Open(c.Request().Context(), s.Store, o)
	if errors.Is(err, artifact.ErrNotFound) {
		return apierr.NotFound("the content of " + a.Artifact + " was removed")
	}
	if errors.Is(err, contract.ErrErased) {
		return apierr.Erased("the content of " + a.Artifact + " was erased")
	}
	if err != nil {
		return apierr.Unavailable("the artifact cannot be read now: " + err.Error())
	}
	defer r.Close()
	stored, err := contract.ParseTime(a.Stored)
	if err != nil {
		return err
	}
	h := c.Response().Header()
	h.Set("Content-Type", a.MediaType)
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": a.Name}))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "private")
	h.Set("Etag", `"`+a.Artifact+`"`)
	http.ServeContent(c.Response(), c.Request(), "", stored, r)
	return nil
}

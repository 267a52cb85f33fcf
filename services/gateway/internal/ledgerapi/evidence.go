package ledgerapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// ReceiptByDigest handles GET /api/v1/proofgraph/receipts/:hash. It responds with the
// receipt whose digest is hash: "sha256:" and 64 lower-case hex digits, or these digits
// alone.
func (s *API) ReceiptByDigest(c echo.Context) error {
	digits := strings.TrimPrefix(c.Param("hash"), "sha256:")
	if b, err := hex.DecodeString(digits); err != nil || len(b) != 32 || digits != strings.ToLower(digits) {
		return apierr.BadRequest("hash", "want a receipt's digest: sha256: and 64 lower-case hex digits")
	}
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	return queries.Send(c, s.Queries.In(who.Tenant), audit.ReceiptByDigestQuery, audit.ReceiptByDigestRequest{Digest: "sha256:" + digits})
}

// ExportRequest is the body of POST /api/v1/evidence/export.
type ExportRequest struct {
	Session string `json:"session_id"`
	Format  string `json:"format,omitempty"` // tar or tar.gz; empty = tar
}

// ExportEvidence handles POST /api/v1/evidence/export. It responds with the evidence
// pack of a session, as GET /api/v1/sessions/:id/evidence does, and compresses it if the
// format is tar.gz.
func (s *API) ExportEvidence(c echo.Context) error {
	var req ExportRequest
	if _, err := body.Into(c, &req); err != nil {
		return err
	}
	if req.Session == "" {
		return apierr.BadRequest("/session_id", "name the session")
	}
	c.SetParamNames("id")
	c.SetParamValues(req.Session)
	switch req.Format {
	case "", "tar":
		return s.Evidence(c)
	case "tar.gz":
		zipped := &zippedResponse{ResponseWriter: c.Response().Writer}
		c.Response().Writer = zipped
		return errors.Join(s.Evidence(c), zipped.Close())
	}
	return apierr.BadRequest("/format", "want tar or tar.gz")
}

// zippedResponse compresses the body of a response with status 200.
type zippedResponse struct {
	http.ResponseWriter
	gz *gzip.Writer
}

// WriteHeader implements http.ResponseWriter.
func (z *zippedResponse) WriteHeader(status int) {
	if status == http.StatusOK {
		z.Header().Set("Content-Type", "application/gzip")
		z.gz = gzip.NewWriter(z.ResponseWriter)
	}
	z.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (z *zippedResponse) Write(b []byte) (int, error) {
	if z.gz == nil {
		return z.ResponseWriter.Write(b)
	}
	return z.gz.Write(b)
}

// Close completes the compressed body.
func (z *zippedResponse) Close() error {
	if z.gz == nil {
		return nil
	}
	return z.gz.Close()
}

// Verification is the response of POST /api/v1/evidence/verify.
type Verification struct {
	Verdict string             `json:"verdict"` // PASS or FAIL
	Checks  VerificationChecks `json:"checks"`
	Errors  []string           `json:"errors"` // the error that ended the verification, if the verdict is FAIL; otherwise empty
	Root    string             `json:"root"`   // key id of the root that the pack was verified against
	Report  *evidence.Report   `json:"report,omitempty"`
}

// VerificationChecks lists the properties that a pack proves. A pack passes or fails as
// a whole, so all members are true or all are false.
type VerificationChecks struct {
	Signatures       bool `json:"signatures"`
	CausalChain      bool `json:"causal_chain"`
	PolicyCompliance bool `json:"policy_compliance"`
}

// Limits of verifications, because one uses much CPU time.
const (
	MaxVerifying = 2                // packs that a gateway verifies at once
	verifyWait   = 10 * time.Second // maximum time that a request waits until its verification begins
)

// VerifyEvidence handles POST /api/v1/evidence/verify. It responds with a Verification,
// even if the pack is invalid. The error is 400 if the request contains no pack or an
// invalid root, and 429 if the gateway is busy with other packs for longer than
// verifyWait, or too many requests of the caller wait. The tenants with waiting requests
// are served in rotation, and so are the callers of a tenant. The pack is the body, or
// the file in the field bundle of a form (multipart/form-data). The root is the mesh's
// own root, or the key id in the parameter root.
func (s *API) VerifyEvidence(c echo.Context) error {
	pack, err := bundle(c.Request().Header.Get("Content-Type"), body.Raw(c))
	if err != nil {
		return err
	}
	root := s.RootKID
	if v := c.QueryParam("root"); v != "" {
		if len(v) > body.MaxName || !strings.HasPrefix(v, contract.IDKey) {
			return apierr.BadRequest("root", "want the key id of a root, k-…")
		}
		root = v
	}
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), verifyWait)
	defer cancel()
	if err := s.Verifiers.Enter(ctx, who.Tenant, who.Actor); err != nil {
		return &apierr.Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: contract.CodeVerifierBusy, RetryAfter: "1", Message: "other packs are being verified; send the request again"}
	}
	defer s.Verifiers.Leave()
	v := Verification{Root: root, Errors: []string{}}
	v.Report, err = evidence.Verify(pack, root)
	if v.Verdict = "PASS"; err != nil {
		v.Verdict, v.Errors = "FAIL", append(v.Errors, err.Error())
	}
	v.Checks = VerificationChecks{err == nil, err == nil, err == nil}
	return c.JSON(http.StatusOK, v)
}

// bundle returns the evidence pack in a request's body raw: the body itself or, if
// contentType is multipart/form-data, the file in the field bundle of the form. The
// error is 400 if there is no pack.
func bundle(contentType string, raw []byte) ([]byte, error) {
	kind, params, _ := mime.ParseMediaType(contentType)
	if kind != "multipart/form-data" {
		if len(raw) == 0 {
			return nil, apierr.BadRequest(apierr.WholeBody, "send an evidence pack, or a form with it in the field bundle")
		}
		return raw, nil
	}
	form := multipart.NewReader(bytes.NewReader(raw), params["boundary"])
	for {
		part, err := form.NextPart()
		if err != nil {
			return nil, apierr.BadRequest("bundle", "the form has no file in the field bundle")
		}
		if part.FormName() == "bundle" {
			b, err := io.ReadAll(part) // the form is in memory, so its size is limited
			if err != nil {
				return nil, apierr.BadRequest("bundle", "the form is cut off")
			}
			return b, nil
		}
	}
}

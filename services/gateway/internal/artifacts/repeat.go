package artifacts

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
)

// upload holds the arguments of a call artifact.put, except the upload's id and the digest of its
// index. Two uploads under one Idempotency-Key are the same request if they are equal.
type upload struct {
	Digest    string `json:"digest"`
	MediaType string `json:"media_type"`
	Name      string `json:"name"`
	RetainS   int64  `json:"retain_s"`
	Size      int64  `json:"size"`
	labels    string // joined by commas
}

// first returns the upload in the arguments of an earlier call artifact.put.
func first(args []byte) (upload, error) {
	var a struct {
		upload
		Labels []string `json:"labels"`
	}
	err := json.Unmarshal(args, &a)
	a.labels = strings.Join(a.Labels, ",")
	return a.upload, err
}

// prior returns the arguments of the call that the Idempotency-Key of an upload identifies, and
// the request for it. The arguments are nil if there is no key or no such call.
func (s *API) prior(c echo.Context, who *auth.Caller) ([]byte, propose.Request, error) {
	r, err := s.Calls.Request(c, "tool."+toolPut, toolPut, []byte("{}"), who)
	if err != nil || r.IdemKey == "" {
		return nil, r, err
	}
	args, err := s.Calls.FirstArgs(c.Request().Context(), r)
	return args, r, err
}

// again handles an upload under the Idempotency-Key of an earlier one with the given arguments.
// It stores nothing: it compares the content with the digest in them, and responds with the
// outcome of the first call, or with 409 if the request differs.
func (s *API) again(c echo.Context, who *auth.Caller, args []byte, r propose.Request, now upload, content io.Reader) error {
	was, err := first(args)
	if err != nil {
		return calls.Conflict(r, "this key was used for another call; use a new one")
	}
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(content, was.Size+1))
	if err != nil {
		return uploadError(err)
	}
	now.Size, now.Digest = n, "sha256:"+hex.EncodeToString(sum.Sum(nil))
	if now != was {
		return calls.Conflict(r, "this key was used for an upload with other content, labels, name, type or retention; use a new one")
	}
	body.Streamed(c)
	return s.respond(c, who, args, now.Size)
}

// afterwards handles the error of a call for content that was stored. If another request under the
// same Idempotency-Key was recorded meanwhile, and its upload is equal to now, it responds with
// the outcome of that request.
func (s *API) afterwards(c echo.Context, who *auth.Caller, now upload, failed error) error {
	e := (*apierr.Error)(nil)
	if !errors.As(failed, &e) || e.Code != contract.CodeIdempotencyConflict {
		return failed
	}
	args, _, err := s.prior(c, who) // audit applies the ledger's entries before it responds
	if err != nil {
		return err
	}
	if args == nil {
		return failed
	}
	if was, err := first(args); err != nil || was != now {
		return failed
	}
	return s.respond(c, who, args, now.Size)
}

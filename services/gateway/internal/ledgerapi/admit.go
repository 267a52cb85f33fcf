package ledgerapi

import (
	"context"
	"errors"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// Limits of the reads that are open at a gateway at once. fair.Places divides each among
// the tenants, so that one tenant has at most half.
const (
	MaxStreams = 256 // lists and streams of entries, receipts and views, each with a reader of its own
	MaxPacks   = 32  // packs, proof graphs, exports and lists that the gateway holds in memory
)

// admit counts a read of the request's caller in places until done is called, which the
// caller of admit must do. The returned context is that of auth.Gate.WatchReads; mesh
// states whether the response contains events of other tenants. The error is 429 if the
// caller's tenant may not have one more read open.
func (s *API) admit(c echo.Context, places *fair.Places, mesh bool) (ctx context.Context, done context.CancelFunc, err error) {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return nil, nil, err
	}
	leave, ok := places.Take(who.Tenant)
	if !ok {
		return nil, nil, apierr.ReadsExceeded("tenant " + who.Tenant + " has as many reads of this kind open at this gateway as it may; end one, or send the request again")
	}
	ctx, end := s.Gate.WatchReads(c.Request().Context(), who, mesh)
	return ctx, func() { end(); leave() }, nil
}

// admitted calls respond while admit counts the read. The context of the request is then
// the one that admit returns. If the caller's access ends before the response begins,
// the error is the reason.
func (s *API) admitted(c echo.Context, places *fair.Places, mesh bool, respond func() error) error {
	ctx, done, err := s.admit(c, places, mesh)
	if err != nil {
		return err
	}
	defer done()
	c.SetRequest(c.Request().WithContext(ctx))
	err = respond()
	if ended := (*apierr.Error)(nil); err != nil && errors.As(context.Cause(ctx), &ended) {
		return ended
	}
	return err
}

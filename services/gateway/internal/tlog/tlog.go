// Package tlog serves the transparency log to monitors and witnesses: checkpoints,
// consistency proofs and tiles in the C2SP tlog-tiles layout. It also accepts
// cosignatures of witnesses.
package tlog

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// API serves the transparency log. Its fields are set before its first use.
type API struct {
	Gate    *auth.Gate
	Queries *queries.Services
}

// Checkpoint handles GET /log/checkpoint. It responds with a checkpoint as a C2SP signed
// note: the newest one, the one that witnesses are to cosign now (witness=true), the
// newest one with at least N cosignatures (witnessed=N), or the last one of the closed
// epoch N (epoch=N).
func (s *API) Checkpoint(c echo.Context) error {
	if _, err := s.Gate.Caller(c, ""); err != nil {
		return err
	}
	epoch, err := epochOf(c)
	if err != nil {
		return err
	}
	witnessed := uint64(0)
	if v := c.QueryParam("witnessed"); v != "" {
		if witnessed, err = strconv.ParseUint(v, 10, 8); err != nil {
			return apierr.BadRequest("witnessed", "want how many witnesses must have cosigned")
		}
	}
	note, err := queries.Do(c.Request().Context(), s.Queries.OfMesh(), audit.CheckpointQuery, audit.CheckpointRequest{
		Witness: c.QueryParam("witness") == "true", Witnessed: int64(witnessed), Epoch: int64(epoch)})
	if err != nil {
		return err
	}
	return c.Blob(http.StatusOK, "text/plain; charset=utf-8", []byte(note))
}

// epochOf returns the number of the closed epoch in the parameter epoch, or 0 for the
// open epoch if the parameter is absent.
func epochOf(c echo.Context) (uint64, error) {
	raw := c.QueryParam("epoch")
	if raw == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(raw, 10, 31)
	if err != nil || n == 0 {
		return 0, apierr.BadRequest("epoch", "want the number of a closed epoch, from 1")
	}
	return n, nil
}

// Consistency handles GET /log/consistency. It responds with the consistency proof (RFC
// 6962) between the trees of the sizes from and to, in the open epoch or in the closed
// one that the parameter epoch names.
func (s *API) Consistency(c echo.Context) error {
	if _, err := s.Gate.Caller(c, ""); err != nil {
		return err
	}
	epoch, err := epochOf(c)
	if err != nil {
		return err
	}
	q := audit.ConsistencyRequest{Epoch: int64(epoch)}
	for name, size := range map[string]*uint64{"from": &q.From, "to": &q.To} {
		if *size, err = strconv.ParseUint(c.QueryParam(name), 10, 53); err != nil {
			return apierr.BadRequest(name, "want a tree size")
		}
	}
	return queries.Send(c, s.Queries.OfMesh(), audit.ConsistencyQuery, q)
}

// Tile handles GET /log/tile/{level}/{tile}. It responds with the hashes of a tile.
func (s *API) Tile(c echo.Context) error {
	if _, err := s.Gate.Caller(c, ""); err != nil {
		return err
	}
	level, err := strconv.ParseUint(c.Param("level"), 10, 8)
	path := c.Param("tile")
	if more := c.Param("*"); more != "" {
		path += "/" + more
	}
	index, width, ok := tilePath(path)
	if err != nil || !ok {
		return apierr.BadRequest("tile", "want /log/tile/<level>/<index in groups of three digits, all but the last with x>[.p/<width>]")
	}
	b, err := queries.Do(c.Request().Context(), s.Queries.OfMesh(), audit.TileQuery, audit.TileRequest{Level: level, Index: index, Width: width})
	if err != nil {
		return err
	}
	if width == 256 { // a full tile never changes
		c.Response().Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	return c.Blob(http.StatusOK, "application/octet-stream", b)
}

// tilePath parses a tile's path, such as x001/x234/067, or x001/x234/067.p/12 for a partial tile.
// width is the number of hashes, 256 for a full tile. ok is false if the path is malformed.
func tilePath(p string) (index, width uint64, ok bool) {
	width = 256
	if i := strings.Index(p, ".p/"); i >= 0 {
		n, err := strconv.ParseUint(p[i+3:], 10, 16)
		if err != nil || n == 0 || n > 255 {
			return 0, 0, false
		}
		p, width = p[:i], n
	}
	groups := strings.Split(p, "/")
	for i, g := range groups {
		last := i == len(groups)-1
		digits, x := strings.CutPrefix(g, "x")
		n, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || len(digits) != 3 || x == last || index > 1<<40 {
			return 0, 0, false
		}
		index = index*1000 + n
	}
	return index, width, true
}

// Cosignature is the body of POST /log/cosignatures.
type Cosignature struct {
	Size uint64 `json:"size"` // tree size of the checkpoint
	Line string `json:"line"` // C2SP tlog-cosignature, without newline
}

// Cosign handles POST /log/cosignatures. It forwards a witness's cosignature to audit.
func (s *API) Cosign(c echo.Context) error {
	if _, err := s.Gate.Caller(c, ""); err != nil {
		return err
	}
	var q Cosignature
	if _, err := body.Into(c, &q); err != nil {
		return err
	}
	if q.Size == 0 {
		return apierr.BadRequest("/size", "want the size of the checkpoint that is cosigned, from 1")
	}
	if q.Line == "" || strings.Contains(q.Line, "\n") {
		return apierr.BadRequest("/line", "want one C2SP tlog-cosignature line, without its newline")
	}
	return queries.Send(c, s.Queries.OfMesh(), audit.CosignQuery, audit.CosignRequest{Size: q.Size, Line: q.Line})
}

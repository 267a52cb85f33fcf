package ledgerapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// ExportLine is one line of a tenant's export: an ExportHeader, an Event, a HiddenSubtree or
// a SessionTip (docs/reference/ledger-format.md).
type ExportLine json.RawMessage

// ExportHeader is the first line of a tenant's export, which audit signs.
type ExportHeader struct {
	Version string `json:"binnacle_tenant_export"` // v1
	evidence.ExportHeader
}

// HiddenSubtree is a line with the hash of a complete subtree of the log, in place of events
// that the tenant may not read.
type HiddenSubtree struct {
	Hash  string `json:"binnacle_hidden"` // in hex
	Level int64  `json:"level"`           // the subtree has 2^level leaves
}

// SessionTip is the line of a session of the tenant: its end in the checkpoint's map of tips.
type SessionTip struct {
	Session string `json:"binnacle_session"`
	evidence.TipProof
}

// TenantEvidence handles GET /api/v1/tenants/:tenant/evidence. It streams the export of a
// tenant (docs/reference/ledger-format.md), to callers of that tenant with scope
// audit:read, and to operators of the mesh with scope cell:audit. The response is 403 for
// callers of that tenant without audit:read, unless it is the cell's tenant, and 404 for
// every other caller whom the route admits, as for a tenant that does not exist. The
// parameters from and witnessed are those of the query audit.tenant_export. If, after the
// response has begun, the export cannot be read to its end or the caller's access ends
// (see auth.Gate.WatchReads), the connection is aborted, so that the response is not
// mistaken for a complete one.
func (s *API) TenantEvidence(c echo.Context) error {
	tenant := c.Param("tenant")
	who, err := s.exporter(c, tenant)
	if err != nil {
		return err
	}
	q, err := exportOf(c)
	if err != nil {
		return err
	}
	ctx, done, err := s.admit(c, s.Packs, tenant != who.Tenant)
	if err != nil {
		return err
	}
	defer done()
	out := exportWriter{c: c}
	for {
		out.next = ""
		err := rpc.List(ctx, s.Queries.In(tenant).Client, audit.TenantExportQuery, q, out.write)
		switch {
		case errors.Is(err, errDisconnected):
			return nil
		case out.waits(ctx, err):
			continue
		case err != nil && out.begun:
			panic(http.ErrAbortHandler)
		case err != nil:
			return queries.Error(audit.TenantExportQuery.Service, err)
		case out.next == "":
			return nil
		}
		q.Next = out.next
	}
}

// exporter returns the caller of a request for the export of a tenant. The error is 403
// if the caller is of that tenant, which is not the cell's, and lacks the scope
// audit:read. It is 404 if the tenant does not exist or the caller may not read its
// export for another reason. An export of the cell's tenant names all tenants, so only
// operators may read it.
func (s *API) exporter(c echo.Context, tenant string) (*auth.Caller, error) {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return nil, err
	}
	if tenant == who.Tenant && tenant != contract.CellTenant {
		return s.Gate.Caller(c, token.Audit)
	}
	_, err = s.Gate.Caller(c, token.CellAudit)
	if err = errors.Join(err, s.Gate.OfMesh(who)); err == nil && s.tenantExists(c.Request().Context(), tenant) {
		return who, nil
	}
	return nil, apierr.NotFound("tenant not found")
}

// tenantExists reports whether a tenant exists, or is the cell's. It waits for at most a
// second for a tenant that another instance may have created.
func (s *API) tenantExists(ctx context.Context, tenant string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return tenant == contract.CellTenant || s.Gate.Tenants.Await(ctx, tenant)
}

// exportOf reads the parameters of a request for an export.
func exportOf(c echo.Context) (q audit.TenantExportRequest, err error) {
	if raw := c.QueryParam("from"); raw != "" {
		if q.From, err = strconv.ParseUint(raw, 10, 53); err != nil || q.From == 0 {
			return q, apierr.BadRequest("from", "want the size of an earlier checkpoint")
		}
	}
	if raw := c.QueryParam("witnessed"); raw != "" {
		if q.Witnessed, err = strconv.ParseInt(raw, 10, 64); err != nil || q.Witnessed < 0 || q.Witnessed > 100 {
			return q, apierr.BadRequest("witnessed", "want a number of witnesses from 0 to 100")
		}
	}
	return q, nil
}

// exportWriter writes the lines of an export as the body of a response.
type exportWriter struct {
	c     echo.Context
	begun bool
	last  time.Time // when the last lines were written
	next  string    // position at which the export continues; "" at its end
}

// Times for an export whose next part audit rejects because audit handles too many reads.
const (
	busyWait  = 30 * time.Second       // maximum time that an export waits for its next part
	busyPause = 100 * time.Millisecond // time between two queries for the part
)

// waits waits for busyPause and reports true if err is audit's error for too many reads,
// the response has begun, and the export has not waited for longer than busyWait. It
// reports false at once if ctx is done. Before the response begins, the client gets the
// error instead.
func (w *exportWriter) waits(ctx context.Context, err error) bool {
	if rpc.CodeOf(err) != contract.CodeReadsExceeded || !w.begun || time.Since(w.last) > busyWait {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(busyPause):
		return true
	}
}

// errDisconnected reports that the client has disconnected.
var errDisconnected = errors.New("the client has disconnected")

// write writes the lines in one part of audit's response.
func (w *exportWriter) write(part []audit.ExportLine) error {
	if !w.begun {
		w.begun = true
		w.c.Response().Header().Set("Content-Type", "application/x-ndjson")
		w.c.Response().WriteHeader(http.StatusOK)
	}
	w.last = time.Now()
	var lines []byte // sent in one write, because each write may wait until the ledger is synced
	for _, l := range part {
		if l.Next != "" {
			w.next = l.Next
			continue
		}
		lines = append(append(lines, l.Line...), '\n')
	}
	if len(lines) == 0 {
		return nil
	}
	if _, err := w.c.Response().Write(lines); err != nil {
		return errDisconnected
	}
	return nil
}

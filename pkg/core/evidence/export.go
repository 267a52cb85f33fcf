package evidence

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// ExportHeader is the first line of a tenant's export, which audit signs. The lines after
// it are, in the order of the ledger, the stored bytes of the events that the export
// contains, and for each run of other events the hashes of the subtrees over them
// (HiddenLine); then one SessionLine for each session of the tenant, sorted by id. An
// export therefore proves the position and the order of each of its events without
// containing any other event. The numbers of events and sessions are attested by audit
// only: nothing else proves that no whole session, and no event outside of sessions, is
// among the hidden ones.
type ExportHeader struct {
	Checkpoint   string   `json:"checkpoint"`             // checkpoint over all leaves, shown and hidden, as a signed note
	Cosignatures []string `json:"cosignatures,omitempty"` // witnesses' signature lines over Checkpoint
	Events       int64    `json:"events"`                 // number of lines that are events
	KID          string   `json:"kid"`                    // id of audit's key
	Lamport      int64    `json:"lamport"`                // Lamport time of the checkpoint
	Sessions     int64    `json:"sessions"`               // number of the tenant's sessions
	Sig          string   `json:"sig,omitempty"`
	Tenant       string   `json:"tenant"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (h *ExportHeader) Canonical(c *canon.Codec) {
	c.Const("binnacle_tenant_export", "v1")
	c.Str("checkpoint", &h.Checkpoint)
	c.OptStrs("cosignatures", &h.Cosignatures)
	c.Int("events", &h.Events)
	c.Str("kid", &h.KID)
	c.Int("lamport", &h.Lamport)
	c.Int("sessions", &h.Sessions)
	c.OptStr("sig", &h.Sig)
	c.Str("tenant", &h.Tenant)
}

// Sign sets the key id and the signature, and returns the header's line without a
// newline.
func (h *ExportHeader) Sign(key *sign.Key) []byte {
	h.KID, h.Sig = key.KID, ""
	h.Sig = key.Sign(sign.DomainExport, contract.Bytes(h))
	return contract.Bytes(h)
}

// hidden is a line that replaces the events of a complete subtree of the log.
type hidden struct {
	Hash  string // hex hash of the subtree
	Level int64  // the subtree has 2^Level leaves
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (h *hidden) Canonical(c *canon.Codec) {
	c.Str("binnacle_hidden", &h.Hash)
	c.Int("level", &h.Level)
}

// HiddenLine returns the line, without a newline, that replaces the 2^level events of a
// complete subtree of the log in an export that contains none of them.
func HiddenLine(level uint, subtree translog.Hash) []byte {
	return contract.Bytes(&hidden{hex.EncodeToString(subtree[:]), int64(level)})
}

// sessionTip is the end of one session, with its proof in the checkpoint's map of tips.
type sessionTip struct {
	Session string
	TipProof
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (s *sessionTip) Canonical(c *canon.Codec) {
	c.Str("binnacle_session", &s.Session)
	s.TipProof.Canonical(c)
}

// SessionLine returns the line of a session of an export, without a newline.
func SessionLine(session string, p *TipProof) []byte {
	return contract.Bytes(&sessionTip{session, *p})
}

// The beginnings of the lines of an export that are not events.
var (
	headerLine  = []byte(`{"binnacle_tenant_export":`)
	hiddenLine  = []byte(`{"binnacle_hidden":`)
	sessionLine = []byte(`{"binnacle_session":`)
)

// ExportReport is the result of a successful verification of a tenant's export.
type ExportReport struct {
	Tenant   string `json:"tenant"`
	Origin   string `json:"origin"`
	TreeSize int64  `json:"tree_size"`
	RootHash string `json:"root_hash"`
	Events   int64  `json:"events"` // events that the export contains, including those of the cell
	Hidden   int64  `json:"hidden"` // events of the log that the export does not contain
	Sessions int    `json:"sessions"`
	Receipts int    `json:"receipts"`
	Attested int    `json:"attested_by_callers"` // receipts of effects that callers reported and no executor observed
	Open     int    `json:"open_calls"`
	Passkeys int    `json:"passkey_votes"` // votes whose signature by a passkey of the approver was verified
	Complete string `json:"complete"`      // CompleteAttested
}

// CompleteAttested is the value of ExportReport.Complete. It states how far it is proved
// that the export contains every event of the tenant: the checkpoint commits to the events
// of each session that is shown, but not to the numbers of sessions and of events.
const CompleteAttested = "each session bound by checkpoint, their number attested by audit only"

// String returns the report as several lines of text for people; programs use the
// JSON form.
func (r *ExportReport) String() string {
	s := fmt.Sprintf("VERIFIED tenant %s\n  log       %s\n  size      %d events, root %s\n  events    %d, the other %d are hidden\n  sessions  %d, each chain unbroken up to the end that the checkpoint commits to\n  receipts  %d, of them %d attested by the callers alone\n  complete  %s\n  open      %d calls without an outcome yet\n",
		r.Tenant, r.Origin, r.TreeSize, r.RootHash, r.Events, r.Hidden, r.Sessions, r.Receipts, r.Attested, r.Complete, r.Open)
	return s + passkeyLine(r.Passkeys)
}

// VerifyExport verifies a tenant's export against the key id of the trusted root. It checks the
// Merkle root over the events and the hidden subtrees; that every event belongs to the tenant,
// or to the cell and concerns the tenant; everything that VerifyLedger checks of these events;
// the end of every session against the checkpoint's map of tips; audit's signature over the
// header, and the numbers in it; and the demands. A checkpoint that the reader kept can be
// compared only if no hidden subtree of the export extends across its size; otherwise
// VerifyExport returns an error.
func VerifyExport(open Opener, rootKID string, demands Demands) (*ExportReport, error) {
	x := &export{authentic: authentic{system: newSystem(rootKID), organizations: map[string]bool{}}}
	x.export = true
	if err := x.authenticate(open, demands); err != nil {
		return nil, err
	}
	return x.walk(open)
}

// export is the state of the verification of a tenant's export.
type export struct {
	authentic
	header   ExportHeader
	tree     translog.Frontier
	events   int64
	sessions int64
	early    bool // whether leaves are hidden before cell_opened
}

// authenticate runs the first pass over the export: it processes the events as the function
// authenticate processes those of a ledger, and verifies the header.
func (x *export) authenticate(open Opener, demands Demands) error {
	kept := demands.keptHead()
	check := func(n uint64, b []byte) (o opened) {
		if !notEvent(n, b) {
			o = openLine(b)
		}
		return o
	}
	if err := inOrder(open, false, check, func(l *line[opened]) error {
		if err := x.line(l); err != nil {
			return fmt.Errorf("line %d: %w", l.n+1, err)
		}
		kept.at(&x.tree)
		return nil
	}); err != nil {
		return err
	}
	if x.header.Tenant == "" {
		return errors.New("not an export of a tenant")
	}
	if kept != nil && kept.root == nil && kept.size <= x.tree.Size {
		return fmt.Errorf("the export hides the end of the checkpoint kept among others' events; export it from=%d", kept.size)
	}
	x.last = trailer{x.header.Checkpoint, x.header.Cosignatures}
	if err := x.seal(&x.tree, kept, demands); err != nil {
		return err
	}
	if err := x.hides(); err != nil {
		return err
	}
	return in("the first line", x.checkHeader())
}

// notEvent reports whether the line at index n is the header or replaces events or is
// about a session.
func notEvent(n uint64, b []byte) bool {
	return n == 0 || bytes.HasPrefix(b, hiddenLine) || bytes.HasPrefix(b, sessionLine)
}

// line processes one line in the first pass.
func (x *export) line(l *line[opened]) error {
	b := l.b
	switch {
	case l.n == 0:
		return x.readHeader(bytes.Clone(b))
	case bytes.HasPrefix(b, sessionLine):
		x.sessions++
		return nil
	case x.sessions > 0:
		return errors.New("follows a line about a session, but is not one")
	case bytes.HasPrefix(b, hiddenLine):
		return x.hide(b)
	}
	if err := x.read(l.n, &l.result); err != nil {
		return err
	}
	x.tree.Add(l.result.leaf)
	x.events++
	return nil
}

// readHeader reads the first line, which it does not verify.
func (x *export) readHeader(b []byte) error {
	if err := contract.Decode(b, &x.header); err != nil {
		return err
	}
	if !contract.Token(x.header.Tenant) {
		return fmt.Errorf("tenant %q", x.header.Tenant)
	}
	x.tenant = x.header.Tenant
	return checkPackTenant(x.tenant)
}

// hide adds the leaves of a hidden subtree to the tree.
func (x *export) hide(b []byte) error {
	var h hidden
	if err := contract.Decode(b, &h); err != nil {
		return err
	}
	subtree, ok := parseHash(h.Hash)
	if !ok || h.Level < 0 || x.tree.AddTree(uint(h.Level), subtree) != nil {
		return fmt.Errorf("no subtree of level %d begins at leaf %d", h.Level, x.tree.Size)
	}
	if x.cell.Opened() && x.tenant == contract.CellTenant && len(x.cell.Tenants()) == 0 {
		return errors.New("hides events of the cell: no other tenant exists here")
	}
	x.early = x.early || !x.cell.Opened()
	return nil
}

// hides returns an error if the tenant of the export does not exist, or if leaves are
// hidden where no other tenant exists: before cell_opened, in the export of the ledger's
// one tenant. Therefore no export can hide cell_opened, and with it the rules that hold
// from then on. All lines must have been read.
func (x *export) hides() error {
	_, exists := x.cell.Of(x.tenant)
	switch {
	case !exists && x.tenant != x.cell.Tenant():
		return fmt.Errorf("tenant %s does not exist", x.tenant)
	case x.early && x.tenant == x.cell.Log():
		return fmt.Errorf("hides events from before the cell is opened: no other tenant than %s exists there", x.tenant)
	}
	return nil
}

// checkHeader verifies audit's signature over the header, and compares its Lamport time
// with that of the checkpoint, and its numbers with those of the lines. It also returns an
// error if the checkpoint, which is verified already, commits to no map of tips.
func (x *export) checkHeader() error {
	h := x.header
	lamport, err := checkpointLamport(x.head)
	if err != nil {
		return err
	}
	if lamport != h.Lamport {
		return errors.New("its lamport is not the checkpoint's")
	}
	pub, err := x.reg.At(h.KID, "audit", contract.UseManifest, uint64(h.Lamport))
	if err != nil {
		return err
	}
	sig := h.Sig
	h.Sig = ""
	if err := sign.Verify(pub, sign.DomainExport, contract.Bytes(&h), sig); err != nil {
		return err
	}
	if !x.has {
		return errors.New("the checkpoint commits to no map of tips")
	}
	if h.Events != x.events || h.Sessions != x.sessions {
		return fmt.Errorf("names %d events and %d sessions; the export has %d and %d", h.Events, h.Sessions, x.events, x.sessions)
	}
	return nil
}

// walk runs the second pass over the export: it checks the calls of the tenant's sessions,
// and that each session ends as the checkpoint's map of tips states.
func (x *export) walk(open Opener) (*ExportReport, error) {
	w := newWalk(&x.authentic)
	ends := ends{x: x, w: w}
	if err := w.each(open, notEvent, ends.line); err != nil {
		return nil, err
	}
	if err := w.caused(); err != nil {
		return nil, err
	}
	rep := &ExportReport{Tenant: x.tenant, Origin: x.head.Origin, TreeSize: int64(x.head.Size), RootHash: hex.EncodeToString(x.head.Root[:]),
		Events: x.events, Hidden: int64(x.head.Size) - x.events, Complete: CompleteAttested, Passkeys: x.signed}
	for _, s := range w.sessions {
		rep.Sessions++
		rep.Receipts += int(s.receipts)
		rep.Attested += s.attested
		rep.Open += openCalls(s.calls)
	}
	if int64(rep.Sessions) != x.sessions {
		return nil, fmt.Errorf("ends of %d sessions, but events of %d", x.sessions, rep.Sessions)
	}
	return rep, nil
}

// ends compares the sessions of an export with the lines about their ends.
type ends struct {
	x    *export
	w    *walk
	last string // the session of the last line
}

// line checks the line of the next session, and ignores lines that are not about sessions.
// The lines about sessions are the last ones, so the states of the sessions are final.
func (s *ends) line(b []byte) error {
	if !bytes.HasPrefix(b, sessionLine) {
		return nil
	}
	var t sessionTip
	if err := contract.Decode(b, &t); err != nil {
		return err
	}
	if t.Session <= s.last {
		return errors.New("sessions are not sorted and unique")
	}
	s.last = t.Session
	c := s.w.sessions[[2]string{s.x.tenant, t.Session}]
	if c == nil {
		return fmt.Errorf("session %s has no events here", t.Session)
	}
	p, err := t.prove(translog.TipKey(s.x.tenant, t.Session), s.x.tips)
	if err == nil && (p.Tip != c.tip.Digest || p.Events != int64(c.events) || p.Receipts != int64(c.receipts)) {
		err = fmt.Errorf("has %d events and %d receipts below the checkpoint; the export holds %d and %d, or ends in another receipt",
			p.Events, p.Receipts, c.events, c.receipts)
	}
	if err != nil {
		return fmt.Errorf("session %s: %w", t.Session, err)
	}
	return nil
}

// admits returns an error if an event of an export belongs neither to the export's tenant nor to
// the events that the cell shares with that tenant: events about keys, except those of approvers
// and of signers of bundles; cell_opened; activations of P0 ceilings and of the cell's P1
// bundles; and events about the tenant itself.
func (s *system) admits(e *contract.Event) error {
	if !s.export || e.Tenant == s.tenant {
		return nil
	}
	if cell := s.cell.Tenant(); cell == "" || e.Tenant == cell {
		shared, err := s.shares(e)
		if err != nil || shared {
			return err
		}
	}
	return fmt.Errorf("event %s: belongs to tenant %s; this export is of %s and the cell", e.ID, e.Tenant, s.tenant)
}

// shares reports whether an event of the cell's tenant concerns the tenant of an export.
func (s *system) shares(e *contract.Event) (bool, error) {
	switch e.Name {
	case contract.EventCellOpened:
		return true, nil
	case contract.EventKeyPublished, contract.EventKeyRevoked:
		var k contract.TrustKey
		err := contract.Decode(e.Data, &k)
		return !personal(k.Owner), err
	case contract.EventPolicyActivated:
		var a contract.Activated
		err := contract.Decode(e.Data, &a)
		return ofEveryTenant(e, &a), err
	}
	if !slices.Contains(aboutTenant, e.Name) {
		return false, nil
	}
	tenant, err := tenantOf(e)
	return tenant == s.tenant, err
}

// aboutTenant lists the names of the events of the cell that are about one tenant.
var aboutTenant = []string{contract.EventTenantCreated, contract.EventTenantQuotaSet, contract.EventTenantResumed, contract.EventTenantSuspended}

// tenantOf returns the tenant that an event of aboutTenant is about.
func tenantOf(e *contract.Event) (tenant string, err error) {
	return tenant, canon.Members(e.Data, func(name, value []byte) {
		if string(name) == `"tenant"` {
			tenant = string(bytes.Trim(value, `"`))
		}
	})
}

// Package resources reads stored documents about the callers' work for clients of MCP: artifacts,
// sessions, evidence packs and receipts. Each is a resource with a URI of the scheme Scheme. A
// read is a query, not a call: policy does not decide it. The package checks the same scopes and
// owners as the routes of the REST API that return the same documents.
package resources

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/s2"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Scheme is the scheme of the URIs of the mesh's own resources, followed by "://".
const Scheme = "binnacle://"

// Kinds of resources: the part of a URI before the id.
const (
	Artifact = Scheme + "artifact/"
	Session  = Scheme + "session/"
	Evidence = Scheme + "evidence/"
	Receipt  = Scheme + "receipt/"
)

// MaxInline is the maximum size in bytes of an artifact or evidence pack that a read returns. The
// content of a larger one is a Link, which names the path of the REST API that returns it.
const MaxInline = 1 << 20

// LinkType is the media type of a Link.
const LinkType = "application/vnd.binnacle.link+json"

// Link is the content of a resource that is larger than MaxInline.
type Link struct {
	MediaType string `json:"media_type"`
	Path      string `json:"path"` // path in the REST API, for a request with the same credential
	Size      int64  `json:"size,omitempty"`
}

// pageSize is the number of receipts of a page of a session, and of artifacts of a page of a
// list.
const pageSize = 100

// Reader reads resources. Its fields are set before its first use. It is safe for concurrent
// use.
type Reader struct {
	Gate    *auth.Gate
	Queries *queries.Services
	Ledger  eventlog.Log
	Store   artifact.Store // nil if the gateway has no connection to it
	Packs   *fair.Places   // evidence packs that are read at once
	Streams *fair.Places   // sessions that are followed at once
}

// Template is the template of the URIs of one kind of resource. Its only variable is Variable.
type Template struct {
	Kind, Name, Title, Description, MediaType string
	scope                                     string // required of the caller, or ""
}

// Variable is the name of the variable of each template.
const Variable = "id"

// URI returns the URI template (RFC 6570).
func (t *Template) URI() string { return t.Kind + "{" + Variable + "}" }

var templates = []Template{
	{Artifact, "artifact", "Artifact", "The content of an artifact, by its id.", "", ""},
	{Receipt, "receipt", "Receipt", "The signed receipt of a call, by the id of the call.", "application/json", ""},
	{Session, "session", "Session", "The receipts of a session, by its id, in the order of their chain.", "application/json", token.Audit},
	{Evidence, "evidence", "Evidence pack", "The evidence pack of a session, by its id: events, receipts, decisions and proofs, for binnacle-verify.", "application/x-tar", token.Audit},
}

// Templates returns the templates of the resources that a caller may read.
func Templates(who *auth.Caller) []Template {
	return slices.DeleteFunc(slices.Clone(templates), func(t Template) bool { return !may(who, t.scope) })
}

func may(who *auth.Caller, scope string) bool {
	return scope == "" || slices.Contains(who.Scopes, scope)
}

// Kind returns the kind that the URI or URI template of a resource begins with, and the rest of
// the URI. The kind is "" if the URI is of no resource of the mesh.
func Kind(uri string) (kind, id string) {
	for _, t := range templates {
		if id, ok := strings.CutPrefix(uri, t.Kind); ok {
			return t.Kind, id
		}
	}
	return "", ""
}

// Item is a resource of a list.
type Item struct {
	URI, Name, MediaType string
	Size                 int64
}

// List returns a page of the artifacts that a caller may read, newest first, and the cursor of
// the next page, which is "" after the last one. The cursor "" selects the first page.
func (r *Reader) List(ctx context.Context, who *auth.Caller, cursor string) (page []Item, next string, err error) {
	all, err := queries.Do(ctx, r.Queries.In(who.Tenant), work.ArtifactListQuery, work.ArtifactListRequest{Owner: who.Reads(), Before: cursor, Limit: pageSize})
	if err != nil {
		return nil, "", err
	}
	for _, a := range all {
		page = append(page, Item{Artifact + a.Artifact, a.Name, a.MediaType, a.Size})
	}
	if len(all) == pageSize {
		next = all[len(all)-1].Upload
	}
	return page, next, nil
}

// Content is the content of a resource.
type Content struct {
	MediaType string
	Data      []byte
}

// Text reports whether the content is text in UTF-8.
func (c *Content) Text() bool {
	kind, _, err := mime.ParseMediaType(c.MediaType)
	text := strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "json") || strings.HasSuffix(kind, "xml") || strings.HasSuffix(kind, "javascript") || strings.HasSuffix(kind, "yaml")
	return err == nil && text && utf8.Valid(c.Data)
}

// errAbsent is the error for a resource that does not exist, that belongs to another principal
// or tenant, or that the caller lacks the scope for. These are not distinguished.
var errAbsent = apierr.NotFound("no such resource")

// Read returns the content of the resource with a URI. The error is errAbsent, 429 if the tenant
// reads too many evidence packs at once, 503 if the resource cannot be read now, or the reason why
// the caller's access has ended.
func (r *Reader) Read(ctx context.Context, who *auth.Caller, uri string) (c *Content, err error) {
	kind, id := Kind(uri)
	i := slices.IndexFunc(templates, func(t Template) bool { return t.Kind == kind })
	if i < 0 || !may(who, templates[i].scope) {
		return nil, errAbsent
	}
	ctx, done := r.Gate.WatchReads(ctx, who, false)
	defer done()
	switch kind {
	case Artifact:
		c, err = r.artifact(ctx, who, id)
	case Receipt:
		c, err = r.receipt(ctx, who, id)
	case Session:
		c, err = r.session(ctx, who, id)
	default:
		c, err = r.evidence(ctx, who, id)
	}
	if ended := (*apierr.Error)(nil); err != nil && errors.As(context.Cause(ctx), &ended) {
		return nil, ended
	}
	return c, err
}

// linkTo returns the content of a resource that is too large.
func linkTo(l Link) (*Content, error) {
	b, err := json.Marshal(l)
	return &Content{LinkType, b}, err
}

// artifact returns the content of an artifact.
func (r *Reader) artifact(ctx context.Context, who *auth.Caller, id string) (*Content, error) {
	if artifact.DigestOf(id) == "" {
		return nil, errAbsent
	}
	a, err := queries.Do(ctx, r.Queries.In(who.Tenant), work.ArtifactInfoQuery, work.ArtifactInfoRequest{Artifact: id, Owner: who.Reads()})
	if err != nil {
		return nil, absent(err)
	}
	if a.Size > MaxInline {
		return linkTo(Link{MediaType: a.MediaType, Path: "/api/v1/artifacts/" + id + "/content", Size: a.Size})
	}
	if r.Store == nil {
		return nil, apierr.Unavailable("this gateway has no connection to the store of artifacts")
	}
	content, err := artifact.Open(ctx, r.Store, artifact.Object{Tenant: who.Tenant, Service: a.Service, Upload: a.Upload, Size: a.Size, Digest: artifact.DigestOf(id), Index: a.Index})
	if err == nil {
		defer content.Close()
		var b []byte
		if b, err = io.ReadAll(content); err == nil {
			return &Content{a.MediaType, b}, nil
		}
	}
	if errors.Is(err, artifact.ErrNotFound) || errors.Is(err, contract.ErrErased) {
		return nil, errAbsent
	}
	return nil, apierr.Unavailable("the artifact cannot be read now: " + err.Error())
}

// absent returns errAbsent for an error 404 and other errors unchanged, so that all reasons for
// which a resource is not found have the same text.
func absent(err error) error {
	var e *apierr.Error
	if errors.As(err, &e) && e.Status == errAbsent.Status {
		return errAbsent
	}
	return err
}

// receipt returns the receipt of a call. The id is that of the call or of the receipt.
func (r *Reader) receipt(ctx context.Context, who *auth.Caller, id string) (*Content, error) {
	call := strings.TrimPrefix(id, contract.IDReceipt)
	if !contract.Token(call) {
		return nil, errAbsent
	}
	e, err := r.Queries.In(who.Tenant).Last(ctx, call)
	if err != nil {
		return nil, err
	}
	if e == nil || e.Name != contract.EventEffectRecorded || !who.Is(e) && who.Reads() != "" {
		return nil, errAbsent
	}
	var rec contract.Recorded
	if err := contract.Decode(e.Data, &rec); err != nil {
		return nil, err
	}
	return &Content{"application/json", contract.Bytes(&rec.Receipt)}, nil
}

// SessionPage is the content of a session: a page of its receipts.
type SessionPage struct {
	Next     string            `json:"next,omitempty"` // URI of the next page, if there is one
	Receipts []json.RawMessage `json:"receipts"`
	Session  string            `json:"session_id"`
}

// session returns a page of the receipts of a session.
func (r *Reader) session(ctx context.Context, who *auth.Caller, rest string) (*Content, error) {
	id, offset, ok := parseSession(rest)
	if !ok {
		return nil, errAbsent
	}
	list, err := rpc.Collect(ctx, r.Queries.In(who.Tenant).Client, audit.SessionReceiptsQuery, audit.SessionReceiptsRequest{Session: id, Limit: pageSize + 1, Offset: offset})
	if err != nil {
		return nil, absent(queries.Error(audit.SessionReceiptsQuery.Service, err))
	}
	doc := SessionPage{Session: id, Receipts: list}
	if len(list) > pageSize {
		doc.Receipts, doc.Next = list[:pageSize], Session+id+offsetQuery+strconv.FormatInt(offset+pageSize, 10)
	}
	b, err := json.Marshal(doc)
	return &Content{"application/json", b}, err
}

// offsetQuery follows the id in the URI of a page of a session. It is followed by the number of
// receipts before the page.
const offsetQuery = "?offset="

// parseSession returns the parts of the URI of a session after its kind.
func parseSession(rest string) (id string, offset int64, ok bool) {
	id, at, paged := strings.Cut(rest, offsetQuery)
	if paged {
		n, err := strconv.ParseInt(at, 10, 32)
		if err != nil || n < 0 {
			return "", 0, false
		}
		offset = n
	}
	return id, offset, contract.Token(id)
}

// evidence returns the evidence pack of a session.
func (r *Reader) evidence(ctx context.Context, who *auth.Caller, id string) (*Content, error) {
	if !contract.Token(id) {
		return nil, errAbsent
	}
	leave, ok := r.Packs.Take(who.Tenant)
	if !ok {
		return nil, apierr.ReadsExceeded("tenant " + who.Tenant + " reads as many evidence packs at this gateway as it may; send the request again")
	}
	defer leave()
	pack, err := rpc.Bytes(ctx, r.Queries.In(who.Tenant).Client, audit.EvidenceQuery, audit.EvidenceRequest{Session: id})
	if err != nil {
		return nil, absent(queries.Error(audit.EvidenceQuery.Service, err))
	}
	defer pack.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(s2.NewReader(pack), MaxInline+1)); err != nil {
		return nil, apierr.Unavailable("the evidence pack cannot be read now: " + err.Error())
	}
	if b.Len() > MaxInline {
		return linkTo(Link{MediaType: "application/x-tar", Path: "/api/v1/sessions/" + url.PathEscape(id) + "/evidence"})
	}
	return &Content{"application/x-tar", b.Bytes()}, nil
}

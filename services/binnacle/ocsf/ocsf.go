// Package ocsf maps events of the ledger to events of the Open Cybersecurity Schema Framework,
// version 1.3.0: class API Activity (6003) of the category Application Activity (6).
//
// An event contains ids, and digests instead of the args and the output of a call.
package ocsf

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/gateway"
)

// Constants of the class.
const (
	Version  = "1.3.0"
	ClassUID = 6003
	category = 6
)

// The values of severity_id that are used.
const (
	Informational = 1
	Low           = 2
	Medium        = 3
	High          = 4
)

var severities = map[int]string{Informational: "Informational", Low: "Low", Medium: "Medium", High: "High"}

// The values of status_id.
const (
	unknown = 0
	success = 1
	failure = 2
)

var statuses = map[int]string{unknown: "Unknown", success: "Success", failure: "Failure"}

// The values of activity_id.
const (
	Create = 1
	Read   = 2
	Update = 3
	Delete = 4
	other  = 99
)

var activities = map[int]string{Create: "Create", Read: "Read", Update: "Update", Delete: "Delete", other: "Other"}

// Event is an event of the class API Activity.
type Event struct {
	ActivityID   int      `json:"activity_id"`
	ActivityName string   `json:"activity_name"`
	Actor        Actor    `json:"actor"`
	API          API      `json:"api"`
	CategoryName string   `json:"category_name"`
	CategoryUID  int      `json:"category_uid"`
	ClassName    string   `json:"class_name"`
	ClassUID     int      `json:"class_uid"`
	Message      string   `json:"message"`
	Metadata     Metadata `json:"metadata"`
	Severity     string   `json:"severity"`
	SeverityID   int      `json:"severity_id"`
	SrcEndpoint  Endpoint `json:"src_endpoint"`
	Status       string   `json:"status"`
	StatusCode   string   `json:"status_code,omitempty"`   // verdict of policy
	StatusDetail string   `json:"status_detail,omitempty"` // reason code of policy; of a vote, how it resolved the call, if it did
	StatusID     int      `json:"status_id"`
	Time         int64    `json:"time"` // milliseconds since 1970
	TypeName     string   `json:"type_name"`
	TypeUID      int      `json:"type_uid"`
	Unmapped     Unmapped `json:"unmapped"`
}

// Actor is who acted.
type Actor struct {
	AppName string   `json:"app_name,omitempty"` // client that the actor used
	Session *Session `json:"session,omitempty"`
	User    User     `json:"user"`
}

// Session is the session of an event.
type Session struct {
	UID string `json:"uid"`
}

// User is a principal, or a service of the mesh.
type User struct {
	Name   string `json:"name"`
	Type   string `json:"type,omitempty"`
	TypeID int    `json:"type_id,omitempty"`
	UID    string `json:"uid"`
}

// API is the operation of an event, its call and the service that recorded it.
type API struct {
	Operation string    `json:"operation"` // tool of the call, or name of the event
	Request   *Request  `json:"request,omitempty"`
	Response  *Response `json:"response,omitempty"`
	Service   Service   `json:"service"`
}

// Request is the call.
type Request struct {
	UID string `json:"uid"`
}

// Response is the outcome of a call, or the state of an observed action.
type Response struct {
	Error   string `json:"error,omitempty"` // error code
	Message string `json:"message"`         // status
}

// Service is the service that recorded the event.
type Service struct {
	Name string `json:"name"`
}

// Metadata describes the event.
type Metadata struct {
	CorrelationUID string  `json:"correlation_uid,omitempty"`
	EventCode      string  `json:"event_code"` // type on the ledger
	LogName        string  `json:"log_name"`
	OriginalTime   string  `json:"original_time"`
	Product        Product `json:"product"`
	Sequence       uint64  `json:"sequence"` // on the ledger
	TenantUID      string  `json:"tenant_uid"`
	UID            string  `json:"uid"` // id of the event, the same for each delivery
	Version        string  `json:"version"`
}

// Product is the mesh.
type Product struct {
	Name       string `json:"name"`
	VendorName string `json:"vendor_name"`
	Version    string `json:"version,omitempty"`
}

// Endpoint is where the event comes from.
type Endpoint struct {
	Name    string `json:"name"` // instance of the service
	SvcName string `json:"svc_name"`
}

// Unmapped has the values for which the schema has no attribute.
type Unmapped struct {
	ArgsDigest   string   `json:"args_digest,omitempty"`
	AttestedBy   string   `json:"attested_by,omitempty"` // "caller" if only the caller attests the outcome
	DecisionID   string   `json:"decision_id,omitempty"`
	OnBehalfOf   string   `json:"on_behalf_of,omitempty"`
	OutputDigest string   `json:"output_digest,omitempty"`
	ReceiptID    string   `json:"receipt_id,omitempty"`
	Roles        []string `json:"roles,omitempty"` // of the approver
	USDMicros    int64    `json:"usd_micros,omitempty"`
	Vote         string   `json:"vote,omitempty"`
}

// errProducer is the error for an event that its service must not record.
var errProducer = errors.New("recorded by another service")

// Intermediate lists the names of events that precede the outcome of a call and need no attention
// of their own. The OCSF event of the outcome has the same actor, session and call.
var Intermediate = []string{contract.EventCallProposed, contract.EventAllowed, contract.EventEffectStarted}

// Map returns the OCSF event of an event at a ledger sequence; version is that of the product. It
// returns an error if the time of the event cannot be decoded. For an outcome, escalation, vote or
// observation, it also returns an error if the data cannot be decoded or another service must
// record such events, and for an outcome, if its receipt is of another call.
func Map(seq uint64, e *contract.Event, version string) (*Event, error) {
	t, err := contract.ParseTime(e.Time)
	if err != nil {
		return nil, err
	}
	_, instance, _ := strings.Cut(e.Source, "/")
	x := &Event{
		CategoryName: "Application Activity", CategoryUID: category, ClassName: "API Activity", ClassUID: ClassUID,
		Time: t.UnixMilli(), SeverityID: severityOf(e.Name), StatusID: success,
		API:         API{Operation: e.Name, Service: Service{Name: e.Service()}},
		SrcEndpoint: Endpoint{Name: cmp.Or(instance, e.Service()), SvcName: e.Service()},
		Metadata: Metadata{CorrelationUID: e.Correl, EventCode: e.Type(), LogName: "binnacle ledger", OriginalTime: e.Time, Sequence: seq, TenantUID: e.Tenant, UID: e.ID,
			Version: Version, Product: Product{Name: "Binnacle", VendorName: "Binnacle", Version: version}},
		Actor: Actor{User: User{Name: e.Actor, UID: e.Actor}},
	}
	if e.Actor == "-" || e.Actor == "" {
		x.Actor.User = User{Name: e.Service(), UID: e.Source, Type: "System", TypeID: 3}
	}
	if e.Client != "-" {
		x.Actor.AppName = e.Client
	}
	if e.Session != "" {
		x.Actor.Session = &Session{UID: e.Session}
	}
	if e.CallID != "" {
		x.API.Request = &Request{UID: e.CallID}
	}
	if err := x.describe(e); err != nil {
		return nil, err
	}
	x.Severity, x.Status = severities[x.SeverityID], statuses[x.StatusID]
	x.ActivityID = activityOf(x.API.Operation)
	x.ActivityName = activities[x.ActivityID]
	x.TypeUID, x.TypeName = ClassUID*100+x.ActivityID, "API Activity: "+x.ActivityName
	if x.Message == "" {
		x.Message = x.API.Operation + " by " + x.Actor.User.Name
	}
	return x, nil
}

// JSON returns the event as JSON without a newline.
func (x *Event) JSON() ([]byte, error) { return json.Marshal(x) }

// describe sets the members that follow from the data of outcomes, escalations, votes and
// observations.
func (x *Event) describe(e *contract.Event) error {
	switch e.Name {
	case contract.EventEffectRecorded:
		return x.recorded(e)
	case contract.EventEscalated:
		return x.escalated(e)
	case contract.EventApprovalRecorded:
		return x.voted(e)
	case contract.EventActionObserved:
		return x.observed(e)
	}
	return nil
}

func (x *Event) recorded(e *contract.Event) error {
	var d contract.Recorded
	if err := contract.Decode(e.Data, &d); err != nil {
		return err
	}
	r, f := &d.Receipt, &d.Effect
	if r.Executor != e.Service() || r.CallID != e.CallID || r.ID != receipt.ID(e.CallID) {
		return errProducer
	}
	x.API.Operation, x.API.Response = f.Tool, &Response{Message: f.Status, Error: f.ErrorCode}
	x.StatusCode, x.StatusDetail = r.Verdict, r.ReasonCode
	x.Unmapped = Unmapped{ArgsDigest: r.ArgsDigest, AttestedBy: f.AttestedBy, DecisionID: r.DecisionID, OutputDigest: r.OutputDigest, ReceiptID: r.ID}
	if u := f.Usage; u != nil {
		x.Unmapped.USDMicros = cmp.Or(u.USDMicros, u.Cents*10_000)
	}
	switch {
	case r.Verdict == contract.Deny:
		x.StatusID, x.SeverityID = failure, Medium
	case f.Status == contract.Unknown:
		x.StatusID, x.SeverityID = unknown, Low
	case f.Status != contract.Succeeded:
		x.StatusID, x.SeverityID = failure, Low
	}
	x.Message = strings.Join([]string{f.Tool, "by", x.Actor.User.Name + ":", r.Verdict, r.ReasonCode + ",", f.Status}, " ")
	return nil
}

func (x *Event) escalated(e *contract.Event) error {
	var d contract.Escalated
	if err := contract.Decode(e.Data, &d); err != nil {
		return err
	}
	if e.Service() != services.Policy {
		return errProducer
	}
	x.API.Operation, x.StatusID, x.SeverityID = d.Call.Tool, unknown, Low
	x.StatusCode, x.StatusDetail = d.Decision.Verdict, d.Decision.ReasonCode
	x.Unmapped = Unmapped{ArgsDigest: d.Decision.ArgsDigest, DecisionID: d.Decision.ID, OnBehalfOf: d.Call.OnBehalfOf}
	x.Message = d.Call.Tool + " by " + x.Actor.User.Name + " waits for approval: " + d.Decision.ReasonCode
	return nil
}

func (x *Event) voted(e *contract.Event) error {
	var d contract.Approval
	if err := contract.Decode(e.Data, &d); err != nil {
		return err
	}
	if e.Service() != services.Policy {
		return errProducer
	}
	if d.Approver != "-" {
		x.Actor = Actor{User: User{Name: d.Approver, UID: d.Approver}}
	}
	x.Unmapped = Unmapped{Vote: d.Vote, Roles: d.Roles}
	x.StatusDetail = d.Resolved
	x.Message = "vote " + d.Vote + " by " + x.Actor.User.Name + " on " + d.CallID
	return nil
}

func (x *Event) observed(e *contract.Event) error {
	var d gateway.ActionObserved
	if err := contract.Decode(e.Data, &d); err != nil {
		return err
	}
	if e.Service() != contract.CallerExecutor {
		return errProducer
	}
	x.API.Operation, x.SeverityID, x.StatusID = d.Kind, Low, unknown
	x.API.Response = &Response{Message: cmp.Or(d.Status, "began"), Error: d.ErrorCode}
	x.Actor.Session = &Session{UID: e.Key}
	x.Unmapped.AttestedBy = contract.Caller
	x.Message = d.Kind + " by " + x.Actor.User.Name + " without a decision, since the mesh was away"
	return nil
}

// severityOf returns the severity of events by their name.
func severityOf(name string) int {
	switch name {
	case contract.EventLedgerTruncated, contract.EventSnapshotRejected, contract.EventBreakGlassOpened, contract.EventMeshFrozen:
		return High
	case contract.EventFlowDenied, contract.EventEndpointFlowDenied, contract.EventEgressRefused, contract.EventKeyRevoked:
		return Medium
	}
	return Informational
}

// verbs maps words of the name of an operation to its activity.
var verbs = map[int][]string{
	Create: {"create", "created", "add", "added", "register", "registered", "put", "stored", "send", "grant", "granted", "published", "opened"},
	Read:   {"get", "list", "read", "search", "fetch", "query", "parse", "scrape", "status", "log", "diff"},
	Update: {"set", "update", "write", "edit", "rotate", "rotated", "activate", "activated", "changed", "renewed", "suspend", "suspended", "resume", "resumed", "approve", "approved"},
	Delete: {"delete", "deleted", "revoke", "revoked", "remove", "removed", "erase", "erased", "retire", "retired", "withdrawn", "closed", "ended"},
}

// activityOf returns the activity of the last word in an operation's name that is in verbs, or
// other.
func activityOf(operation string) int {
	words := strings.FieldsFunc(strings.ToLower(operation), func(r rune) bool { return r == '.' || r == '_' || r == '-' || r == '/' })
	slices.Reverse(words)
	for _, w := range words {
		for _, id := range []int{Create, Read, Update, Delete} {
			if slices.Contains(verbs[id], w) {
				return id
			}
		}
	}
	return other
}

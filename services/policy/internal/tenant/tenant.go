// Package tenant decides the calls that create tenants and change them: tenant.create,
// tenant.suspend, tenant.resume and tenant.set_quota.
//
// It is pure. The events about one tenant are one aggregate of the cell, and a call is
// decided on the history of that aggregate, so that a tenant is created once even if
// several instances decide concurrently. trust.Cell accepts every event that Decide
// returns, after the same history.
package tenant

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// The kinds of the calls that this package decides.
const (
	KindCreate   = "tenant.create"
	KindSuspend  = "tenant.suspend"
	KindResume   = "tenant.resume"
	KindSetQuota = "tenant.set_quota"
)

// Error is the reason why a call is rejected.
type Error struct {
	Field   string // name of the argument that is the reason
	Message string // what is wrong with its value, and how to correct it
}

// Error returns the field and the message.
func (e *Error) Error() string { return e.Field + ": " + e.Message }

// refuse returns an *Error with a formatted message.
func refuse(field, format string, args ...any) error {
	return &Error{field, fmt.Sprintf(format, args...)}
}

// Command is a call with decoded arguments.
type Command struct {
	Tenant string // id of the tenant that the call creates or changes
	decide func(*history) (name string, data canon.Document, err error)
}

// commands maps the kind of a call to the function that decodes its arguments.
var commands = map[string]func(args []byte) (*Command, error){
	KindCreate:   create,
	KindSuspend:  suspend,
	KindResume:   resume,
	KindSetQuota: setQuota,
}

// Governs reports whether this package decides calls of the kind.
func Governs(kind string) bool { return commands[kind] != nil }

// Parse decodes the arguments of a call of a kind for which Governs returns true. It
// returns an *Error if an argument that names the tenant is not valid, and another error
// if the arguments cannot be decoded.
func Parse(kind string, args []byte) (*Command, error) {
	decode := commands[kind]
	if decode == nil {
		return nil, fmt.Errorf("kind %s: want tenant.create, tenant.suspend, tenant.resume or tenant.set_quota", kind)
	}
	return decode(args)
}

// Decide returns the name and the data of the event to record, or an *Error. events are
// the events of the aggregate with the key contract.TenantKey(c.Tenant), and original is
// the id of the original tenant, which no event created.
func (c *Command) Decide(events []*contract.Event, original string) (name string, data canon.Document, err error) {
	return c.decide(historyOf(events, c.Tenant, original))
}

// history is the state of one tenant.
type history struct {
	original  string // id of the original tenant, whichever tenant this is
	exists    bool
	suspended bool
}

// historyOf returns the state of a tenant after the events of its aggregate.
func historyOf(events []*contract.Event, id, original string) *history {
	h := &history{original: original, exists: id == original}
	for _, e := range events {
		switch e.Name {
		case contract.EventTenantCreated:
			h.exists = true
		case contract.EventTenantSuspended:
			h.suspended = true
		case contract.EventTenantResumed:
			h.suspended = false
		}
	}
	return h
}

// decode decodes arguments. Unknown members are an error, although the input schema of
// the tool has already rejected them.
func decode(args []byte, into any) error {
	strict := json.NewDecoder(bytes.NewReader(args))
	strict.DisallowUnknownFields()
	return strict.Decode(into)
}

type createArgs struct {
	Organization string          `json:"organization"`
	Project      string          `json:"project"`
	Environment  string          `json:"environment"`
	Admin        string          `json:"admin"`
	Quota        *contract.Quota `json:"quota"`
}

// create decodes the arguments of tenant.create. The command is rejected if the tenant
// exists, if its organization is that of the original tenant, or if an argument is not
// valid.
func create(args []byte) (*Command, error) {
	var a createArgs
	if err := decode(args, &a); err != nil {
		return nil, err
	}
	id, err := a.id()
	if err != nil {
		return nil, err
	}
	return &Command{id, func(h *history) (string, canon.Document, error) {
		reserved, _ := contract.TenantParts(h.original)
		switch {
		case h.exists:
			return "", nil, refuse("environment", "tenant %s exists: choose another name", id)
		case a.Organization == reserved:
			return "", nil, refuse("organization", "%s is that of the original tenant, which has a budget ledger of its own: choose another name", a.Organization)
		case strings.TrimSpace(a.Admin) == "":
			return "", nil, refuse("admin", "name the principal that is to administer the tenant")
		}
		d := &contract.TenantCreated{Admin: a.Admin, Environment: a.Environment, Organization: a.Organization, Project: a.Project, Tenant: id}
		if a.Quota != nil && *a.Quota != (contract.Quota{}) {
			d.Quota = a.Quota
		}
		return contract.EventTenantCreated, d, valid(a.Quota)
	}}, nil
}

// id returns the id of the tenant that the arguments name, or an *Error with the first
// name that is not valid.
func (a *createArgs) id() (string, error) {
	const name = "x" // a valid name, so that only n.value is checked
	for _, n := range [...]struct{ field, value string }{{"organization", a.Organization}, {"project", a.Project}, {"environment", a.Environment}} {
		if contract.Reserved(n.value) {
			return "", refuse(n.field, "%q is reserved for the mesh: choose a name of letters, digits and hyphens", n.value)
		}
		if _, err := contract.TenantID(n.value, name, name); err != nil {
			return "", refuse(n.field, "%q is not a name: want 1 to 32 of [a-z0-9-], with a letter or digit at both ends", n.value)
		}
	}
	return contract.TenantID(a.Organization, a.Project, a.Environment)
}

// valid returns an *Error unless every member of the quota is zero or more. A nil quota is
// valid.
func valid(q *contract.Quota) error {
	if q == nil {
		return nil
	}
	for _, m := range [...]struct {
		name  string
		value int64
	}{{"artifact_bytes", q.ArtifactBytes}, {"body_bytes", q.BodyBytes}, {"calls_per_second", q.CallsPerSecond}, {"in_flight", q.InFlight}} {
		if m.value < 0 {
			return refuse("quota/"+m.name, "%d is negative: give a positive number, or omit the member for no limit", m.value)
		}
	}
	return nil
}

// known returns a Command about the tenant id that is rejected if the tenant does not
// exist. It returns an *Error if id cannot be that of a tenant.
func known(id string, decide func(*history) (string, canon.Document, error)) (*Command, error) {
	switch {
	case contract.Reserved(id):
		return nil, refuse("tenant", "%q is reserved for the mesh, and is not changed by calls: name a tenant that `binnacle tenant list` shows", id)
	case !contract.Token(id):
		return nil, refuse("tenant", "%q is not the id of a tenant: name one that `binnacle tenant list` shows", id)
	}
	return &Command{id, func(h *history) (string, canon.Document, error) {
		if !h.exists {
			return "", nil, refuse("tenant", "%s does not exist: name one that `binnacle tenant list` shows, or create it with `binnacle tenant create`", id)
		}
		return decide(h)
	}}, nil
}

type stateArgs struct {
	Tenant string `json:"tenant"`
	Reason string `json:"reason"`
}

// suspend decodes the arguments of tenant.suspend. The command is rejected if the tenant
// does not exist or is suspended, or if the reason is blank.
func suspend(args []byte) (*Command, error) {
	return change(args, contract.EventTenantSuspended, func(h *history) string {
		if h.suspended {
			return "is suspended already"
		}
		return ""
	})
}

// resume decodes the arguments of tenant.resume. The command is rejected if the tenant
// does not exist or is not suspended, or if the reason is blank.
func resume(args []byte) (*Command, error) {
	return change(args, contract.EventTenantResumed, func(h *history) string {
		if !h.suspended {
			return "is not suspended"
		}
		return ""
	})
}

// change decodes the arguments of a call that records an event with the given name, unless
// wrong returns why the state of the tenant does not permit it.
func change(args []byte, name string, wrong func(*history) string) (*Command, error) {
	var a stateArgs
	if err := decode(args, &a); err != nil {
		return nil, err
	}
	return known(a.Tenant, func(h *history) (string, canon.Document, error) {
		if why := wrong(h); why != "" {
			return "", nil, refuse("tenant", "%s %s", a.Tenant, why)
		}
		if strings.TrimSpace(a.Reason) == "" {
			return "", nil, refuse("reason", "is required")
		}
		return name, &contract.TenantState{Reason: a.Reason, Tenant: a.Tenant}, nil
	})
}

type quotaArgs struct {
	Tenant string         `json:"tenant"`
	Quota  contract.Quota `json:"quota"`
}

// setQuota decodes the arguments of tenant.set_quota. The command is rejected if the
// tenant does not exist or a member of the quota is negative.
func setQuota(args []byte) (*Command, error) {
	var a quotaArgs
	if err := decode(args, &a); err != nil {
		return nil, err
	}
	return known(a.Tenant, func(*history) (string, canon.Document, error) {
		return contract.EventTenantQuotaSet, &contract.TenantQuotaSet{Quota: a.Quota, Tenant: a.Tenant}, valid(&a.Quota)
	})
}

package usage

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Version is the version of Apply and of the form of Save; see snapshot.Source.
const Version = 2

// saved is the JSON form of a State in a snapshot.
type saved struct {
	Newest  string        `json:"newest"`
	Cells   []savedCell   `json:"cells"`
	Answers []savedAnswer `json:"answers"` // by tenant, oldest first
}

type savedCell struct {
	At       string           `json:"at"`
	Tenant   string           `json:"tenant"`
	Provider string           `json:"provider"`
	Model    string           `json:"model"`
	Key      string           `json:"key"`
	Actor    string           `json:"actor"`
	Tags     string           `json:"tags"`
	Counts   [8]int64         `json:"counts"` // attempts; successes; cancellations; input, output, cached and reasoning tokens; cost in micro-dollars
	Errors   map[string]int64 `json:"errors"`
	Latency  hist             `json:"latency"`
	First    hist             `json:"first"`
}

type savedAnswer struct {
	Tenant  string   `json:"tenant"`
	ID      string   `json:"id"`
	Call    string   `json:"call"`
	Actor   string   `json:"actor"`
	Deleted bool     `json:"deleted"`
	Tokens  int64    `json:"tokens"`
	Items   []string `json:"items"`
}

// Save returns the whole state in the form that Load reads. Equal states have equal
// bytes.
func (s *State) Save() ([]byte, error) {
	d := saved{Newest: s.newest}
	for _, at := range slices.Sorted(maps.Keys(s.cells)) {
		for k, c := range s.cells[at] {
			d.Cells = append(d.Cells, savedCell{at, k.tenant, k.provider, k.model, k.key, k.actor, k.tags,
				[8]int64{c.attempts, c.ok, c.cancelled, c.in, c.out, c.cached, c.reason, c.micro}, c.errors, c.latency, c.first})
		}
	}
	slices.SortFunc(d.Cells, func(a, b savedCell) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Actor, b.Actor), cmp.Compare(a.Tags, b.Tags))
	})
	for _, tenant := range slices.Sorted(maps.Keys(s.ids)) {
		own := s.ids[tenant]
		for _, id := range own.order {
			a := own.by[id]
			d.Answers = append(d.Answers, savedAnswer{tenant, id, a.Call, a.Actor, a.Deleted, a.Tokens, a.items})
		}
	}
	return json.Marshal(&d)
}

// Load replaces the state with one that Save returned. After an error the state is
// unchanged.
func (s *State) Load(b []byte) error {
	var d saved
	if err := json.Unmarshal(b, &d); err != nil {
		return err
	}
	n := State{cells: map[string]map[cell]*sum{}}
	if d.Newest != "" {
		if err := n.advance(d.Newest); err != nil {
			return err
		}
	}
	for _, c := range d.Cells {
		x := n.cell(c.At, cell{c.Tenant, c.Provider, c.Model, c.Key, c.Actor, c.Tags})
		x.merge(&sum{c.Counts[0], c.Counts[1], c.Counts[2], c.Errors, c.Counts[3], c.Counts[4], c.Counts[5], c.Counts[6], c.Counts[7], c.Latency, c.First})
	}
	for _, a := range d.Answers {
		own := n.own(a.Tenant)
		if _, ok := own.by[a.ID]; ok {
			return fmt.Errorf("response %s is listed twice", a.ID)
		}
		own.order = append(own.order, a.ID)
		n.stored++
		own.by[a.ID] = Answer{Call: a.Call, Actor: a.Actor, Deleted: a.Deleted, Tokens: a.Tokens, items: a.Items}
	}
	*s = n
	return nil
}

package govern

import (
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// Limits holds the limits that the last call of policy.set_limits put in force.
// The zero value has none.
type Limits struct {
	list []guard.Limit
	doc  []byte // recorded bytes of the limits, for the dump
}

func (x *Limits) set(data []byte) error {
	var d events.LimitsSet
	if err := contract.Decode(data, &d); err != nil {
		return err
	}
	var doc guard.Limits
	if err := contract.Decode(d.Limits, &doc); err != nil {
		return err
	}
	x.list, x.doc = doc.Limits, slices.Clone(d.Limits)
	return nil
}

// List returns the limits in the order of the call that set them. The caller must
// not change them.
func (x *Limits) List() []guard.Limit { return x.list }

type setLimitsArgs struct {
	Limits []guard.Limit `json:"limits"`
}

// setLimits returns the event that replaces all limits. The new limits must be valid and
// pass the caller's check Consistent, if there is one. No id may begin with
// guard.CeilingLimit, because the limit could then charge the account of a limit of the
// ceilings.
func setLimits(_ *State, c *Caller, a *setLimitsArgs) (Fact, error) {
	if err := guard.CheckLimits(a.Limits); err != nil {
		return none, err
	}
	for i := range a.Limits {
		if strings.HasPrefix(a.Limits[i].ID, guard.CeilingLimit) {
			return none, fmt.Errorf("limits[%d].id: begins with %s, which belongs to the limits of the ceilings: choose another", i, guard.CeilingLimit)
		}
	}
	if c.Consistent != nil {
		if err := c.Consistent(a.Limits); err != nil {
			return none, err
		}
	}
	return Fact{events.LimitsSetName, &events.LimitsSet{Limits: contract.Bytes(&guard.Limits{Limits: a.Limits})}}, nil
}

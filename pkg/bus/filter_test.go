package bus

import "testing"

func TestFilter(t *testing.T) {
	for _, c := range []struct {
		f    Filter
		want string
	}{
		{Filter{}, "evt.>"},
		{Filter{Tenant: "t"}, "evt.t.>"},
		{Filter{Service: "policy"}, "evt.*.policy.>"},
		{Filter{Tenant: "t", Service: "policy"}, "evt.t.policy.>"},
		{Filter{Event: "escalated"}, "evt.*.*.*.escalated.>"},
		{Filter{Origin: "gw1", Event: "effect_recorded"}, "evt.*.*.gw1.effect_recorded.>"},
		{Filter{Tenant: "t", Event: "effect_recorded", Key: "s-1"}, "evt.t.*.*.effect_recorded.s-1"},
		{Filter{Tenant: "t", Key: "s-1"}, "evt.t.*.*.*.s-1"},
		{Filter{Tenant: "t", Service: "policy", Origin: "-", Event: "e", Key: "k"}, "evt.t.policy.-.e.k"},
	} {
		if got := c.f.String(); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.f, got, c.want)
		}
	}
}

// TestParseFilter checks that ParseFilter reverses String, and that it parses a subject
// as a filter of all its tokens.
func TestParseFilter(t *testing.T) {
	for _, f := range []Filter{{}, {Tenant: "t"}, {Service: "policy"}, {Event: "e"}, {Origin: "gw1", Event: "e"}, {Tenant: "t", Key: "s-1"}, {Tenant: "t", Service: "policy", Origin: "-", Event: "e", Key: "k"}} {
		if got := ParseFilter(f.String()); got != f {
			t.Errorf("%s is read as %+v, want %+v", f, got, f)
		}
	}
	for _, s := range []string{"", "tmp.t.policy.gw1.x", "evt", "events.>"} {
		if got := ParseFilter(s); got != (Filter{}) {
			t.Errorf("%q is read as %+v", s, got)
		}
	}
}

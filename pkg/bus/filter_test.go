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

// TestParseFilter checks that ParseFilter reverses String, and that it returns the zero
// Filter for text that is not a filter of events.
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

// TestMatch checks that Match implements the wildcards of NATS.
func TestMatch(t *testing.T) {
	for _, c := range []struct {
		filter, subject string
		want            bool
	}{
		{"a.b", "a.b", true}, {"a.b", "a.c", false}, {"a.b", "a", false}, {"a", "a.b", false},
		{"a.*", "a.b", true}, {"a.*", "a", false}, {"a.*", "a.b.c", false}, {"*.b", "a.b", true},
		{"a.>", "a.b", true}, {"a.>", "a.b.c", true}, {">", "a", true}, {"a.*.c", "a.b.c", true}, {"a.*.c", "a.b.d", false}, {EveryEvent, "evt.t.a.-.x.k", true}, {EveryEvent, "tmp.t.a.-.x", false}, {"a.b.>", "a.b", false},
	} {
		if got := Match(c.filter, c.subject); got != c.want {
			t.Errorf("%s of %s: %v", c.filter, c.subject, got)
		}
	}
}

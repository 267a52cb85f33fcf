package llm

import (
	"reflect"
	"slices"
	"testing"
)

// TestMost checks that the maximum numbers of input and output tokens are computed from
// the limits of the request and of the model.
func TestMost(t *testing.T) {
	for _, c := range []struct {
		name    string
		args    Args
		limits  Limits
		in, out int64
	}{
		{"what the request bounds", Args{In: 10, Hold: 30}, Limits{}, 10, 20},
		{"never more than the context", Args{In: 10, Hold: 30}, Limits{Context: 6}, 6, 20},
		{"images of a known model", Args{In: 10, Hold: 10, Images: 2}, Limits{Image: 100}, 210, 0},
		{"images of an unknown one", Args{In: 10, Hold: 10, Images: 2}, Limits{}, 10 + 2*unknownImage, 0},
		{"files fill the context", Args{In: 10, Hold: 30, Whole: true}, Limits{Context: 5000}, 5000, 20},
		{"files fill an unknown context", Args{In: 10, Hold: 30, Whole: true}, Limits{}, UnknownContext, 20},
		{"files beside more text than that", Args{In: UnknownContext + 1, Hold: UnknownContext + 1, Whole: true}, Limits{}, UnknownContext + 1, 0},
		{"no bound of its own", Args{In: 10, Hold: 10 + DefaultOutput, Unbound: true}, Limits{Output: DefaultOutput + 7}, 10, DefaultOutput + 7},
		{"three answers without a bound", Args{In: 10, Hold: 10 + 3*DefaultOutput, Unbound: true, Answers: 3}, Limits{}, 10, 3 * unknownOutput},
		{"a model that gives less", Args{In: 10, Hold: 10 + DefaultOutput, Unbound: true}, Limits{Output: 1}, 10, DefaultOutput},
	} {
		if in, out := c.args.Most(c.limits); in != c.in || out != c.out {
			t.Errorf("%s: %d in and %d out, want %d and %d", c.name, in, out, c.in, c.out)
		}
	}
}

// TestAgrees checks that two summaries agree if and only if they are equal except for
// the members that the proposing service sets.
func TestAgrees(t *testing.T) {
	added := []string{"Beta", "Body", "Cache", "Capture", "Digest", "History"}
	base := Args{Model: "m", Params: Raw(`{}`), In: 1000, Hold: 2000}
	for f := range reflect.TypeFor[Args]().Fields() {
		other := base
		switch v := reflect.ValueOf(&other).Elem().FieldByIndex(f.Index); v.Interface().(type) {
		case string:
			v.SetString("x")
		case bool:
			v.SetBool(true)
		case int64:
			v.SetInt(v.Int() + 7)
		case []string:
			v.Set(reflect.ValueOf([]string{"x"}))
		case Raw:
			v.SetBytes([]byte(`{"x":1}`))
		default:
			t.Fatalf("%s has a type that this test does not know", f.Name)
		}
		if f.Name == "History" { // the value of History is also added to In and Hold
			other.In, other.Hold = other.In+7, other.Hold+7
		}
		if got, want := other.Agrees(&base), slices.Contains(added, f.Name); got != want {
			t.Errorf("summaries that differ in %s alone: Agrees = %v", f.Name, got)
		}
	}
}

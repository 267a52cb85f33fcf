package bound

import (
	"fmt"
	"math"
	"testing"
)

func TestCheck(t *testing.T) {
	for value, want := range map[int64]string{0: "<nil>", 1: "<nil>", Day: "<nil>", -1: "a.b: -1: want a number from 0 to 86400000", Day + 1: "a.b: 86400001: want a number from 0 to 86400000",
		math.MinInt64: "a.b: -9223372036854775808: want a number from 0 to 86400000"} {
		if got := fmt.Sprint(Check("a.b", value, int64(Day))); got != want {
			t.Errorf("%d: %s, want %s", value, got, want)
		}
	}
}

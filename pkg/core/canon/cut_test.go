package canon

import (
	"slices"
	"testing"
)

// TestCutShort shows that Read, Members, IsCanonical and Check reject each proper prefix
// of a document, and do not read past its end.
func TestCutShort(t *testing.T) {
	doc := Append(nil, benchRow())
	shaped := []byte(`{"a":"x\n\"é","b":3,"c":true,"d":[{"x":-1}],"e":"two","f":{"z":[1,{"k":"v\\"}]}}`)
	if err := someShape.Check(shaped); err != nil {
		t.Fatal(err)
	}
	for n := range doc {
		cut := slices.Clip(doc[:n])
		var r row
		if Read(cut, &r) == nil {
			t.Errorf("Read accepts %s", cut)
		}
		if Members(cut, func(name, value []byte) { _, _ = string(name), string(value) }) == nil {
			t.Errorf("Members accepts %s", cut)
		}
		if IsCanonical(cut) {
			t.Errorf("%s is canonical", cut)
		}
	}
	for n := range shaped {
		if someShape.Check(slices.Clip(shaped[:n])) == nil {
			t.Errorf("%s has the shape", shaped[:n])
		}
	}
}

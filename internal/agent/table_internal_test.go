package agent

import (
	"testing"

	"dayfly.dev/dayfly"
)

// TestWhatIsForgottenWasPerhaps: of an id that could have been forgotten the table does not say that there never was such a process,
// by which a repeated request would start it again.
func TestWhatIsForgottenWasPerhaps(t *testing.T) {
	tab := newTable(retainMax)
	first := &process{id: dayfly.NewID(dayfly.PrefixProcess)}
	never := dayfly.NewID(dayfly.PrefixProcess)
	want := func(id string, code dayfly.Code) {
		t.Helper()
		if _, err := tab.find(id); dayfly.ErrorCode(err) != code {
			t.Errorf("%v, want %s", err, code)
		}
	}
	if err := tab.add(first); err != nil {
		t.Fatal(err)
	}
	tab.finish(first)
	for n := range 3*forgottenMax + finishedMax {
		switch n {
		case finishedMax:
			want(first.id, dayfly.CodeGone)
			want(never, dayfly.CodeNotFound)
		case 2 * forgottenMax:
			want(first.id, dayfly.CodeGone)
		}
		p := &process{id: dayfly.NewID(dayfly.PrefixProcess)}
		if err := tab.add(p); err != nil {
			t.Fatal(err)
		}
		tab.finish(p)
	}
	want(first.id, dayfly.CodeGone)
	want(never, dayfly.CodeGone)
	want("pr1", dayfly.CodeNotFound)
}

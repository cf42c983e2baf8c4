package packaging_test

import (
	"os"
	"strings"
	"testing"

	"dayfly.dev/dayfly/packaging"
)

func TestUnit(t *testing.T) {
	for _, tt := range []struct {
		name, exec string
		unit       packaging.Unit
	}{
		{"plain", "/opt/bin/dayfly server --data=/srv/d", packaging.Unit{Binary: "/opt/bin/dayfly", Args: []string{"server", "--data=/srv/d"}, Data: "/srv/d", Prefix: "/opt"}},
		{"hard paths", `"/o p/bin/dayfly" server "--data=/s\"%%$$ é\\"`,
			packaging.Unit{Binary: "/o p/bin/dayfly", Args: []string{"server", `--data=/s"%$ é\`}, Data: `/s"%$ é\`, Prefix: "/o p"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, err := tt.unit.Text()
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(text, "\nExecStart="+tt.exec+"\n") {
				t.Errorf("want ExecStart=%s in\n%s", tt.exec, text)
			}
			for _, line := range []string{"Type=notify", "KillMode=process", "Delegate=yes", "Restart=always", "RestartSec=1s", "WantedBy=multi-user.target"} {
				if !strings.Contains(text, "\n"+line+"\n") {
					t.Errorf("there is no line %s", line)
				}
			}
			got, ok := packaging.ParseUnit(text)
			if !ok || got.Data != tt.unit.Data || got.Prefix != tt.unit.Prefix {
				t.Errorf("ParseUnit = %+v, %v", got, ok)
			}
		})
	}
}

func TestUnitRefusesWhatNoLineHolds(t *testing.T) {
	for _, data := range []string{"", "/a\nExecStartPre=/bin/evil", "/a\x00"} {
		u := packaging.Unit{Binary: "/b", Data: data, Prefix: "/p"}
		if text, err := u.Text(); err == nil {
			t.Errorf("Text of %q = %s", data, text)
		}
	}
}

// The file in the repository is one that can be used as it is.
func TestUnitFile(t *testing.T) {
	b, err := os.ReadFile(packaging.UnitName)
	if err != nil {
		t.Fatal(err)
	}
	u, ok := packaging.ParseUnit(string(b))
	if !ok || u.Data != "/var/lib/dayfly" || u.Prefix != "/usr/local" {
		t.Errorf("ParseUnit = %+v, %v", u, ok)
	}
}

func TestParseUnitOfSomebodyElse(t *testing.T) {
	if u, ok := packaging.ParseUnit("[Service]\nExecStart=/usr/bin/dayfly\n"); ok {
		t.Errorf("ParseUnit = %+v", u)
	}
}

func FuzzParseUnit(f *testing.F) {
	f.Add("x\n[X-Dayfly]\nData=/a\nPrefix=/b\n")
	f.Fuzz(func(t *testing.T, text string) {
		if u, ok := packaging.ParseUnit(text); ok && (u.Data == "" || u.Prefix == "" || strings.Contains(u.Data+u.Prefix, "\n")) {
			t.Errorf("ParseUnit = %+v", u)
		}
	})
}

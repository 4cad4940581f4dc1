package main

import "testing"

// TestPlantedPackage: two files that use each other, a third above them, and imports that are not there.
func TestPlantedPackage(t *testing.T) {
	packages, err := readPackages([]file{
		{"processor/a.go", "package p\n\nimport \"no/such\"\n\ntype shared struct{ field such.T }\n\n" +
			"func a() { var x *transactions; x.run() }\n"},
		{"processor/b.go", "package p\n\ntype transactions struct {\n\t*shared\n\ttasks map[int]int\n\tlog *int\n}\n\n" +
			"func (x *transactions) run() { if x.tasks != nil && nil == x.log { a(); a() } }\n"},
		{"processor/c.go", "package p\n\nfunc c(x *transactions) { x.field.Do(); x.run() }\n"},
		{"processor/a_test.go", "not read"},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := packages[0]
	if len(packages) != 1 || len(p.uses) != 3 || p.circle() != 2 {
		t.Errorf("%d packages, the first of %d files, with a circle of %d: want one of 3 files, with a circle of 2",
			len(packages), len(p.uses), p.circle())
	}
	if p.up() != 1 || p.arrows != 3 {
		t.Errorf("%d of %d arrows point up, want 1 of 3", p.up(), p.arrows)
	}
	if p.byNil != 1 || p.embeds != 1 {
		t.Errorf("%d comparisons of the stage with nil, %d embed shared: want one of each", p.byNil, p.embeds)
	}
}

func TestKindOf(t *testing.T) {
	for name, want := range map[string]string{
		"processor/judge/judge.go": service, "processor/judge/judge_test.go": tests, "processor/mutants/doc.go": tests,
		"processor/kafkatest/proxy/proxy.go": proof, "benchmarks/internal/bench/bench.go": proof, "cmd/oncebus/main.go": service,
	} {
		if got := kindOf(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

package judge_test

import (
	"errors"
	"fmt"

	"oncebus/processor/app"
)

// scriptErasure is a request to erase one row.
type scriptErasure struct {
	task    app.TaskID
	request app.ErasureRequest
}

// erase erases the row of an event, in a transaction of its own.
func (r *scriptRun) erase(st *step) error {
	if len(st.words) == 0 || len(st.words) > 2 || len(st.words) == 2 && st.words[1] != "aborted" {
		return errors.New("want erase TOPIC/PARTITION/OFFSET, or erase TOPIC/PARTITION/OFFSET aborted")
	}
	named := st.words[0]
	if _, known := r.erasures[named]; !known {
		for _, t := range r.sorted() {
			for row, err := range t.store.Rows() {
				if err != nil {
					return err
				}
				if string(r.app.PositionText(row.At)) == named {
					r.erasures[named] = scriptErasure{t.ID, app.ErasureRequest{NamespaceID: row.NamespaceID, Rows: []app.RowRef{app.RefOf(&row)}}}
				}
			}
		}
	}
	e, known := r.erasures[named]
	if !known {
		return fmt.Errorf("no row is of the event at %s", named)
	}
	for {
		t := r.tasks[e.task]
		t.JoinTransaction()
		if _, err := t.Erase(r.judging, &e.request); err != nil {
			return err
		}
		if !r.refused && len(st.words) == 1 {
			r.end()
			return nil
		}
		refused := r.refused
		r.abort()
		if !refused {
			return nil
		}
	}
}

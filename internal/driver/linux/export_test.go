package linux

// Attach makes the driver make overlays as on a kernel before 6.15.
func (d *Driver) Attach() (err error) {
	if d.annex == nil {
		d.annex, err = openAnnex()
	}
	return err
}

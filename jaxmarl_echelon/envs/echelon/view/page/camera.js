// A camera that circles around the point it looks at.

const FIELD_OF_VIEW = 0.8;

class Camera {
  constructor(size) {
    this.size = size;
    this.reset();
  }

  reset() {
    this.target = [this.size[0] / 2, this.size[1] / 2, 0];
    this.yaw = -Math.PI / 2;
    this.pitch = 0.95;
    this.distance = 1.25 * Math.max(this.size[0], this.size[1]);
  }

  eye() {
    const level = Math.cos(this.pitch);
    const direction = [level * Math.cos(this.yaw), level * Math.sin(this.yaw), Math.sin(this.pitch)];
    return add(this.target, scaled(direction, this.distance));
  }

  /** World to clip space. */
  matrix(aspect) {
    const far = this.distance + 3 * Math.max(...this.size);
    return multiply(perspective(FIELD_OF_VIEW, aspect, 0.5, far), lookAt(this.eye(), this.target));
  }

  orbit(dx, dy) {
    this.yaw -= 0.006 * dx;
    this.pitch = clamp(this.pitch + 0.006 * dy, 0.05, 1.55);
  }

  /** Moves along the ground so that it follows a pointer that moves by pixels on a screen of some height. */
  pan(dx, dy, height) {
    const unit = (2 * Math.tan(FIELD_OF_VIEW / 2) * this.distance) / height;
    const right = [-Math.sin(this.yaw), Math.cos(this.yaw), 0];
    const ahead = [-Math.cos(this.yaw), -Math.sin(this.yaw), 0];
    this.target = add(this.target, add(scaled(right, -dx * unit), scaled(ahead, (dy * unit) / Math.sin(this.pitch))));
  }

  zoom(amount) {
    this.distance = clamp(this.distance * Math.exp(0.001 * amount), 4, 4 * Math.max(...this.size));
  }
}
